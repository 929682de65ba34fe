#include "router/drafters/selection.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RoutingTable Table() {
  RoutingTable table;
  table.models = {{.name = "big"}, {.name = "small"}};
  table.drafters = {{.name = "code"}, {.name = "math"}, {.name = "general"}};
  return table;
}

v1::SpeculationOptions Options(v1::SpeculationMode mode, const std::string& drafter = "") {
  v1::SpeculationOptions options;
  options.set_mode(mode);
  options.set_drafter(drafter);
  return options;
}

TEST(SelectModelTest, NamedDefaultOrNotFound) {
  const RoutingTable table = Table();
  const Tenant both{.models = {1, 0}};
  EXPECT_EQ(*SelectModel(table, both, ""), 1u);
  EXPECT_EQ(*SelectModel(table, both, "big"), 0u);
  const absl::Status unknown = SelectModel(table, both, "huge").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(unknown.message(), HasSubstr("model: \"huge\""));

  const Tenant small_only{.models = {1}};
  EXPECT_EQ(SelectModel(table, small_only, "big").status().code(), absl::StatusCode::kNotFound);
}

TEST(SelectAdapterTest, RequestThenTenantThenNone) {
  v1::GenerateRequest request;
  const Tenant open{.models = {1, 0}, .adapter = "own"};
  EXPECT_EQ(*SelectAdapter(open, 1, request), "own");
  EXPECT_EQ(*SelectAdapter(open, 0, request), "") << "another model than the tenant's default";
  EXPECT_EQ(*SelectAdapter(Tenant{.models = {1}}, 1, request), "");
  request.set_adapter("x");
  EXPECT_EQ(*SelectAdapter(open, 0, request), "x");
  request.set_adapter("");
  EXPECT_EQ(*SelectAdapter(open, 1, request), "") << "without any";
}

TEST(SelectAdapterTest, OnesThatATenantMayNotUseAreAsIfTheyWereNotThere) {
  const Tenant listed{.models = {0}, .adapter = "own", .allowed_adapters = {"x", "own"}};
  v1::GenerateRequest request;
  request.set_adapter("x");
  EXPECT_EQ(*SelectAdapter(listed, 0, request), "x");
  request.set_adapter("y");
  const absl::Status refused = SelectAdapter(listed, 0, request).status();
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("adapter: \"y\" is held by no verifier"));
}

TEST(SelectDrafterTest, ATenantsWindowPoliciesAreThoseThatAreListed) {
  const RoutingTable table = Table();
  const Tenant open{.allowed_drafters = {0, 1}};
  const Tenant listed{.allowed_drafters = {0, 1}, .allowed_window_policies = {"goodput", "analytic"}};
  v1::SpeculationOptions options;
  EXPECT_TRUE(SelectDrafter(table, listed, options).ok());
  options.set_window_policy("analytic");
  EXPECT_TRUE(SelectDrafter(table, listed, options).ok());
  options.set_window_policy("fixed");
  EXPECT_TRUE(SelectDrafter(table, open, options).ok());
  const absl::Status refused = SelectDrafter(table, listed, options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("speculation.window_policy: \"fixed\" is not allowed for this "
                                           "tenant, expected one of goodput, analytic"));
}

TEST(SelectDrafterTest, RequestThenTenantThenNone) {
  const RoutingTable table = Table();
  const Tenant tenant{.drafter = 0, .allowed_drafters = {0, 1}};
  const Tenant plain{.allowed_drafters = {0, 1}};

  auto selection = SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_UNSPECIFIED, "math"));
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->drafter, 1u);
  EXPECT_EQ(selection->reason, "request");

  selection = SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_ON));
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->drafter, 0u);
  EXPECT_EQ(selection->reason, "tenant");

  selection = SelectDrafter(table, plain, Options(v1::SPECULATION_MODE_UNSPECIFIED));
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->drafter, std::nullopt);
  EXPECT_EQ(selection->reason, "none");

  selection = SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_OFF, "math"));
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->drafter, std::nullopt);
  EXPECT_EQ(selection->reason, "off");
}

TEST(SelectDrafterTest, PolicyAutoLeavesTheChoiceOpen) {
  const RoutingTable table = Table();
  const Tenant tenant{.drafter = 0, .policy = v1::DRAFTER_POLICY_AUTO, .allowed_drafters = {0, 2}};
  auto selection = SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_UNSPECIFIED));
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->drafter, std::nullopt);
  EXPECT_THAT(selection->candidates, ElementsAre(0, 2));

  selection = SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_UNSPECIFIED, "general"));
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->drafter, 2u);
  EXPECT_TRUE(selection->candidates.empty());
  selection = SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_OFF));
  ASSERT_TRUE(selection.ok());
  EXPECT_TRUE(selection->candidates.empty());
}

TEST(SelectDrafterTest, FollowsTheTenantsPolicy) {
  RoutingTable table = Table();
  Tenant tenant{.drafter = 0,
                .policy = v1::DRAFTER_POLICY_CANARY,
                .canary = Canary{.drafter = 2, .percent = 100.0},
                .allowed_drafters = {0, 1, 2}};
  const auto selection = [&](const std::string& drafter = "") {
    return SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_UNSPECIFIED, drafter), "id").value();
  };
  EXPECT_EQ(selection().drafter, 2u);
  EXPECT_EQ(selection().reason, "canary");
  EXPECT_EQ(selection("math").drafter, 1u) << "a request's own choice comes first";

  tenant.policy = v1::DRAFTER_POLICY_OFF;
  const absl::Status named =
      SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_UNSPECIFIED, "math"), "id").status();
  EXPECT_EQ(named.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(named.message(), HasSubstr("speculation.drafter: \"math\", but speculation is off"));
  EXPECT_EQ(selection().reason, "off");
  const absl::Status insists = SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_ON), "id").status();
  EXPECT_EQ(insists.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(insists.message(), HasSubstr("speculation is off for the tenant"));

  tenant.policy = v1::DRAFTER_POLICY_PINNED;
  table.drafters[1].draining = true;
  EXPECT_EQ(selection("math").drafter, std::nullopt);
  EXPECT_EQ(selection("math").reason, "draining");
  EXPECT_EQ(SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_ON, "math"), "id").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(selection().drafter, 0u);
}

TEST(SelectDrafterTest, ThePartnerIsTheRequestsOrTheTenants) {
  RoutingTable table = Table();
  Tenant tenant{.drafter = 0, .partner = 1, .allowed_drafters = {0, 1, 2}};
  v1::SpeculationOptions options = Options(v1::SPECULATION_MODE_UNSPECIFIED);
  EXPECT_EQ(SelectDrafter(table, tenant, options)->partner, 1u);
  options.set_drafter("math");
  options.set_partner("code");
  EXPECT_EQ(SelectDrafter(table, tenant, options)->partner, 0u);
  options.set_partner("nonsense");
  const absl::Status unknown = SelectDrafter(table, tenant, options).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("speculation.partner: \"nonsense\""));
  // One that drains takes no new sessions, and the drafter drafts alone.
  options.clear_partner();
  table.drafters[1].draining = true;
  EXPECT_EQ(SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_UNSPECIFIED))->partner, std::nullopt);
  EXPECT_EQ(SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_OFF))->partner, std::nullopt);
}

TEST(SelectDrafterTest, Errors) {
  const RoutingTable table = Table();
  const Tenant tenant{.allowed_drafters = {0, 1}};
  for (const char* drafter : {"general", "nonsense"}) {
    const absl::Status status =
        SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_ON, drafter)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("speculation.drafter: "));
  }
  EXPECT_EQ(SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_OFF, "nonsense")).status().code(),
            absl::StatusCode::kInvalidArgument);
  // The verifier may draft by itself, and says so if it does not.
  EXPECT_EQ(SelectDrafter(table, tenant, Options(v1::SPECULATION_MODE_ON))->reason, "none");
  EXPECT_EQ(SelectDrafter(table, tenant, Options(static_cast<v1::SpeculationMode>(7))).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::router
