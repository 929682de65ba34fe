#include "router/drafters/drafter_policy.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RoutingTable ThreeDrafters() {
  RoutingTable table;
  for (const char* name : {"code", "math", "prose"}) table.drafters.push_back({.name = name});
  return table;
}

Tenant WithPolicy(v1::DrafterPolicy policy) {
  return {.name = "acme", .drafter = 0, .policy = policy, .allowed_drafters = {0, 1}};
}

TEST(DrafterPolicyTest, PoliciesWithoutAChoice) {
  const RoutingTable table = ThreeDrafters();
  const DrafterCandidates pinned = NarrowDrafters(table, WithPolicy(v1::DRAFTER_POLICY_PINNED), "r");
  EXPECT_THAT(pinned.drafters, ElementsAre(0));
  EXPECT_EQ(pinned.reason, "tenant");
  EXPECT_FALSE(pinned.choose);
  const DrafterCandidates off = NarrowDrafters(table, WithPolicy(v1::DRAFTER_POLICY_OFF), "r");
  EXPECT_THAT(off.drafters, IsEmpty());
  EXPECT_EQ(off.reason, "off");
  const DrafterCandidates unspecified =
      NarrowDrafters(table, WithPolicy(v1::DRAFTER_POLICY_UNSPECIFIED), "r");
  EXPECT_THAT(unspecified.drafters, ElementsAre(0));
  const DrafterCandidates none = NarrowDrafters(table, {.name = "acme", .allowed_drafters = {0, 1}}, "r");
  EXPECT_THAT(none.drafters, IsEmpty());
  EXPECT_EQ(none.reason, "none");
}

TEST(DrafterPolicyTest, AutoHasWhatIsAllowedAndDoesNotDrain) {
  RoutingTable table = ThreeDrafters();
  const Tenant tenant = WithPolicy(v1::DRAFTER_POLICY_AUTO);
  EXPECT_THAT(NarrowDrafters(table, tenant, "r").drafters, ElementsAre(0, 1));
  EXPECT_TRUE(NarrowDrafters(table, tenant, "r").choose);
  table.drafters[0].draining = true;
  EXPECT_THAT(NarrowDrafters(table, tenant, "r").drafters, ElementsAre(1));
}

TEST(DrafterPolicyTest, AutoLeavesOutWhatCannotDraft) {
  const RoutingTable table = ThreeDrafters();
  const auto can_draft = [](const Drafter& drafter) { return drafter.name != "code"; };
  const DrafterCandidates open = NarrowDrafters(table, WithPolicy(v1::DRAFTER_POLICY_AUTO), "r", can_draft);
  EXPECT_THAT(open.drafters, ElementsAre(1));
  EXPECT_THAT(open.unfit, ElementsAre(0));
  // What somebody has chosen is asked, and says itself why it refuses.
  const DrafterCandidates pinned =
      NarrowDrafters(table, WithPolicy(v1::DRAFTER_POLICY_PINNED), "r", can_draft);
  EXPECT_THAT(pinned.drafters, ElementsAre(0));
  EXPECT_THAT(pinned.unfit, IsEmpty());
}

TEST(DrafterPolicyTest, DrainingDraftersGetNothing) {
  RoutingTable table = ThreeDrafters();
  table.drafters[0].draining = true;
  const DrafterCandidates pinned = NarrowDrafters(table, WithPolicy(v1::DRAFTER_POLICY_PINNED), "r");
  EXPECT_THAT(pinned.drafters, IsEmpty());
  EXPECT_EQ(pinned.reason, "draining");

  Tenant canary = WithPolicy(v1::DRAFTER_POLICY_CANARY);
  canary.canary = Canary{.drafter = 1, .percent = 100.0};
  EXPECT_THAT(NarrowDrafters(table, canary, "r").drafters, ElementsAre(1))
      << "the one on trial does not drain";
  table.drafters[0].draining = false;
  table.drafters[1].draining = true;
  EXPECT_THAT(NarrowDrafters(table, canary, "r").drafters, ElementsAre(0)) << "back to the tenant's own";
}

TEST(DrafterPolicyTest, TheCanarysShareIsStableAndGrowsOnly) {
  const RoutingTable table = ThreeDrafters();
  Tenant tenant = WithPolicy(v1::DRAFTER_POLICY_CANARY);
  tenant.canary = Canary{.drafter = 1};
  const auto on_trial = [&](double percent, const std::string& id) {
    tenant.canary->percent = percent;
    const DrafterCandidates candidates = NarrowDrafters(table, tenant, id);
    EXPECT_EQ(candidates.drafters.size(), 1u);
    EXPECT_EQ(candidates.reason, candidates.drafters[0] == 1 ? "canary" : "tenant");
    return candidates.drafters[0] == 1;
  };
  constexpr int kRequests = 10000;
  int at_ten = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string id = absl::StrCat("request-", i);
    EXPECT_FALSE(on_trial(0.0, id));
    EXPECT_TRUE(on_trial(100.0, id));
    const bool ten = on_trial(10.0, id);
    EXPECT_EQ(on_trial(10.0, id), ten);
    if (ten) {
      EXPECT_TRUE(on_trial(20.0, id));
      ++at_ten;
    }
  }
  // Ten standard deviations around 1,000.
  EXPECT_GT(at_ten, 700);
  EXPECT_LT(at_ten, 1300);
}

}  // namespace
}  // namespace tandem::router
