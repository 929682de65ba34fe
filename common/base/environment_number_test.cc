#include "common/base/environment_number.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
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

using EnvironmentNumberDeathTest = EnvironmentNumberTest;

TEST_F(EnvironmentNumberDeathTest, EndsTheProcessIfWhatIsSetCannotBeUsed) {
  for (const char* value : {"", "many", "-1", "1.5", "18446744073709551616"}) {
    setenv(kName, value, 1);
    EXPECT_EXIT(NumberFromEnvironment(kName, 7), ::testing::ExitedWithCode(2),
                "expected a whole number from 0 to 18446744073709551615")
        << value;
  }
  for (const char* value : {"9", "21"}) {
    setenv(kName, value, 1);
    EXPECT_EXIT(NumberFromEnvironment(kName, 15, 10, 20), ::testing::ExitedWithCode(2),
                absl::StrCat(kName, "='", value, "': expected a whole number from 10 to 20"));
  }
}

}  // namespace
}  // namespace tandem
