#include "common/base/environment_number.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr char kName[] = "TANDEM_ENVIRONMENT_NUMBER_TEST";

class EnvironmentNumberTest : public ::testing::Test {
 protected:
  ~EnvironmentNumberTest() override { unsetenv(kName); }
};

TEST_F(EnvironmentNumberTest, IsWhatIsSet) {
  EXPECT_EQ(NumberFromEnvironment(kName, 7), 7u);
  setenv(kName, "0", 1);
  EXPECT_EQ(NumberFromEnvironment(kName, 7), 0u);
  setenv(kName, "18446744073709551615", 1);
  EXPECT_EQ(NumberFromEnvironment(kName, 7), 18446744073709551615u);
}

TEST_F(EnvironmentNumberTest, EndsTheProcessIfWhatIsSetCannotBeUsed) {
  for (const char* value : {"", "many", "-1", "1.5", "18446744073709551616"}) {
    setenv(kName, value, 1);
    EXPECT_EXIT(NumberFromEnvironment(kName, 7), ::testing::ExitedWithCode(2),
                "expected a number of at least 0")
        << value;
  }
  setenv(kName, "9", 1);
  EXPECT_EXIT(NumberFromEnvironment(kName, 70, 10), ::testing::ExitedWithCode(2),
              "TANDEM_ENVIRONMENT_NUMBER_TEST='9': expected a number of at least 10");
}

}  // namespace
}  // namespace tandem
