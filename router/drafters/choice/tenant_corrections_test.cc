#include "router/drafters/choice/tenant_corrections.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

// At `ratio` times the one token per second that is predicted.
void ObserveRatio(TenantCorrections& corrections, absl::string_view tenant, double ratio, int times = 200) {
  for (int i = 0; i < times; ++i) {
    ASSERT_TRUE(corrections.Observe(tenant, 1.0, {.decode_tokens = 100, .decode_seconds = 100.0 / ratio}));
  }
}

TEST(TenantCorrectionsTest, OneTenantsRequestsChangeNothingForAnother) {
  TenantCorrections corrections;
  EXPECT_FALSE(corrections.known());
  EXPECT_EQ(corrections.value("quiet"), 1.0);
  ObserveRatio(corrections, "quiet", 0.95, 20);
  const double before = corrections.value("quiet");
  ObserveRatio(corrections, "flood", 0.3, 10000);
  EXPECT_NEAR(corrections.value("flood"), 0.3, 0.01);
  EXPECT_EQ(corrections.value("quiet"), before);
}

TEST(TenantCorrectionsTest, ANewTenantBeginsWithTheMeanInWhichAllWeighAlike) {
  TenantCorrections corrections;
  ObserveRatio(corrections, "a", 2.0);
  ObserveRatio(corrections, "b", 2.0);
  ObserveRatio(corrections, "flood", 0.25, 10000);
  EXPECT_NEAR(corrections.value("new"), 1.0, 0.02) << "the cube root of 2 * 2 * 0.25";
  // Its own requests soon say more.
  ObserveRatio(corrections, "new", 2.0, 20);
  EXPECT_GT(corrections.value("new"), 1.7);
}

TEST(TenantCorrectionsTest, WhatWasLoadedGivesWaySlowly) {
  TenantCorrections corrections;
  corrections.Set(0.5);
  EXPECT_TRUE(corrections.known());
  EXPECT_NEAR(corrections.value("a"), 0.5, 1e-9);
  ObserveRatio(corrections, "a", 0.6, 3);
  EXPECT_NEAR(corrections.value("a"), 0.5, 0.02);
  EXPECT_NEAR(corrections.value("b"), 0.5, 0.02);
}

TEST(TenantCorrectionsTest, WhatTellsNothingIsNotRemembered) {
  TenantCorrections corrections;
  EXPECT_FALSE(corrections.Observe("a", 1.0, {.decode_tokens = 1, .decode_seconds = 1.0}));
  EXPECT_FALSE(corrections.Observe("a", std::nan(""), {.decode_tokens = 100, .decode_seconds = 1.0}));
  EXPECT_FALSE(corrections.known());
}

TEST(TenantCorrectionsTest, ManyTenantsForgetTheOneThatWasSilentLongest) {
  TenantCorrections corrections;
  ObserveRatio(corrections, "first", 3.0);
  ObserveRatio(corrections, "second", 2.0);
  ObserveRatio(corrections, "first", 3.0, 1);
  for (size_t i = 2; i <= TenantCorrections::kMostTenants; ++i) {
    ObserveRatio(corrections, absl::StrCat("t", i), 1.0);
  }
  EXPECT_NEAR(corrections.value("first"), 3.0, 0.05);
  EXPECT_NEAR(corrections.value("second"), corrections.mean(), 1e-9);
}

}  // namespace
}  // namespace tandem::router
