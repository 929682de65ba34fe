#include "router/serving/readiness.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReadinessTest, EveryModelThatSomebodyWantsHasToBeServed) {
  Readiness readiness({});
  const absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_FALSE(readiness.Update({{"a", true, false}, {"b", true, true}, {"c", false, false}}, now));
  EXPECT_THAT(readiness.unserved(), ElementsAre("a"));
  EXPECT_TRUE(readiness.Update({{"a", true, true}, {"b", true, true}, {"c", false, false}}, now));
  EXPECT_THAT(readiness.unserved(), IsEmpty());
  // A tenant is given another one.
  EXPECT_FALSE(readiness.Update({{"a", true, true}, {"b", true, true}, {"c", true, false}}, now));
  EXPECT_THAT(readiness.unserved(), ElementsAre("c"));
  EXPECT_TRUE(readiness.Update({{"a", false, false}, {"b", false, false}, {"c", false, false}}, now))
      << "nobody is refused";
}

TEST(ReadinessTest, AModelThatLosesItsVerifiersIsServedALittleLonger) {
  Readiness readiness({.patience = absl::Seconds(3)});
  absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_FALSE(readiness.Update({{"a", true, false}}, now)) << "it was never served";
  EXPECT_TRUE(readiness.Update({{"a", true, true}}, now));
  EXPECT_TRUE(readiness.Update({{"a", true, false}}, now += absl::Seconds(3)));
  EXPECT_FALSE(readiness.Update({{"a", true, false}}, now += absl::Milliseconds(1)));
  EXPECT_TRUE(readiness.Update({{"a", true, true}}, now)) << "back at once";
  // Wanted or not, what it was is remembered.
  EXPECT_TRUE(readiness.Update({{"a", false, false}}, now += absl::Seconds(10)));
  EXPECT_FALSE(readiness.Update({{"a", true, false}}, now));
}

TEST(ReadinessTest, OneServedModelIsEnoughWhereThatIsMeant) {
  Readiness readiness({.every_model = false});
  const absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_FALSE(readiness.Update({{"a", true, false}, {"b", true, false}, {"c", false, true}}, now));
  EXPECT_TRUE(readiness.Update({{"a", true, false}, {"b", true, true}}, now));
  EXPECT_THAT(readiness.unserved(), ElementsAre("a"));
}

}  // namespace
}  // namespace tandem::router
