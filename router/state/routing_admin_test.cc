#include "router/state/routing_admin.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::SetTenantRequest TenantRequest(const std::string& text) {
  v1::SetTenantRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

v1::SetDrafterRequest DrafterRequest(const std::string& text) {
  v1::SetDrafterRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

class RoutingAdminTest : public ::testing::Test {
 protected:
  RoutingAdminTest() {
    v1::RouterConfig config = testing::LettersConfig({"verifier:7002"});
    config.mutable_tenants(1)->set_admin(true);
    state_ = RoutingState::InMemory(config).value();
  }

  std::string PinnedTo(const std::string& tenant) const {
    const auto snapshot = state_->snapshot();
    for (const Tenant& candidate : snapshot->table().tenants) {
      if (candidate.name == tenant && candidate.drafter.has_value()) {
        return snapshot->table().drafters[*candidate.drafter].name;
      }
    }
    return "";
  }

  std::unique_ptr<RoutingState> state_;
};

TEST_F(RoutingAdminTest, SetsFieldsAndKeepsOthers) {
  const auto info = SetTenant(*state_, TenantRequest(R"pb(config { name: "acme" drafter: "math" weight: 3 }
                                                          fields: "drafter"
                                                          fields: "weight")pb"));
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->config().max_concurrent_requests(), 2u);
  EXPECT_EQ(info->config().token(), "");
  EXPECT_EQ(PinnedTo("acme"), "math") << "in force at once";
  EXPECT_EQ(state_->snapshot()->tenants().Authenticate("Bearer secret-a"), 0u) << "the token is kept";

  const auto replaced = SetTenant(*state_, TenantRequest(R"pb(config { name: "acme" token: "secret-n" })pb"));
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->config().max_concurrent_requests(), 0u);
  EXPECT_EQ(PinnedTo("acme"), "");
  EXPECT_EQ(state_->snapshot()->tenants().Authenticate("Bearer secret-a"), std::nullopt);
  EXPECT_EQ(state_->snapshot()->tenants().Authenticate("Bearer secret-n"), 0u);
}

TEST_F(RoutingAdminTest, CreatesAndDeletes) {
  ASSERT_TRUE(
      SetDrafter(*state_, DrafterRequest(R"pb(config { name: "new" endpoint: "d:1" draft_model: "m" })pb"))
          .ok());
  ASSERT_TRUE(
      SetTenant(*state_, TenantRequest(R"pb(config { name: "beta" token: "secret-b" drafter: "new" })pb"))
          .ok());
  EXPECT_EQ(PinnedTo("beta"), "new");
  EXPECT_THAT(GetDrafter(*state_, "new")->tenants(), ElementsAre("beta"));

  const absl::Status in_use = DeleteDrafter(*state_, "new");
  EXPECT_EQ(in_use.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(in_use.message(), "drafter \"new\" is in use by tenant \"beta\"");
  ASSERT_TRUE(DeleteTenant(*state_, "beta").ok());
  ASSERT_TRUE(DeleteDrafter(*state_, "new").ok());
  EXPECT_EQ(DeleteDrafter(*state_, "new").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DeleteTenant(*state_, "beta").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ListTenants(*state_)->tenants_size(), 2);
  EXPECT_EQ(ListDrafters(*state_)->drafters_size(), 2);
}

TEST_F(RoutingAdminTest, SocketsOfOneMachineAreTheConfigurations) {
  v1::RouterConfig config = testing::LettersConfig({"verifier:7002"});
  config.mutable_drafters(0)->set_endpoint("unix:/run/drafter");
  state_ = RoutingState::InMemory(config).value();
  // What stands there stays, whatever else of it changes.
  EXPECT_TRUE(SetDrafter(*state_, DrafterRequest(R"pb(config { name: "code" draft_model: "other" }
                                                      fields: "draft_model")pb"))
                  .ok());
  for (const char* endpoint : {"unix:/run/other", "unix-abstract:other"}) {
    v1::SetDrafterRequest request = DrafterRequest(R"pb(config { name: "math" }
                                                        fields: "endpoint")pb");
    request.mutable_config()->set_endpoint(endpoint);
    const absl::Status refused = SetDrafter(*state_, request).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << endpoint;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("config.endpoint"));
  }
}

TEST_F(RoutingAdminTest, ErrorsNameWhatTheyAreAbout) {
  const auto error = [this](const std::string& request) {
    const auto before = state_->snapshot();
    const absl::Status status = SetTenant(*state_, TenantRequest(request)).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(state_->snapshot(), before) << "a refused change changes nothing";
    return std::string(status.message());
  };
  EXPECT_EQ(error(R"pb(config { name: "acme" drafter: "prose" }
                       fields: "drafter")pb"),
            "tenant \"acme\".drafter: \"prose\" is not a configured drafter");
  EXPECT_THAT(error(R"pb(config { name: "beta" })pb"), HasSubstr("found none"));
  EXPECT_THAT(error(R"pb(config { token: "x" })pb"), HasSubstr("missing; every tenant needs a name"));
  EXPECT_THAT(error(R"pb(config { name: "beta" token: "secret-a" })pb"),
              HasSubstr("tenant \"beta\": has the same token as tenant \"acme\""));
  EXPECT_THAT(error(R"pb(config { name: "beta" token: "a b" })pb"), HasSubstr("config.token: "));
  EXPECT_THAT(error(R"pb(config { name: "acme" }
                         fields: "colour")pb"),
              HasSubstr("\"colour\" is not a settable field"));
  EXPECT_THAT(error(R"pb(config { name: "acme" }
                         fields: "name")pb"),
              HasSubstr("\"name\" is not a settable field"));
  EXPECT_THAT(error(R"pb(config { name: "a\nb" token: "x" })pb"), Not(HasSubstr("\nb")));
}

TEST_F(RoutingAdminTest, AnOldVersionIsRefused) {
  const uint64_t version = GetTenant(*state_, "acme")->version();
  v1::SetTenantRequest request = TenantRequest(R"pb(config { name: "acme" weight: 2 }
                                                    fields: "weight")pb");
  request.set_expected_version(version);
  ASSERT_TRUE(SetTenant(*state_, request).ok());
  EXPECT_EQ(SetTenant(*state_, request).status().code(), absl::StatusCode::kAborted);
}

TEST_F(RoutingAdminTest, TheLastAdminStays) {
  EXPECT_EQ(DeleteTenant(*state_, "zeta").code(), absl::StatusCode::kFailedPrecondition);
  const auto unset = SetTenant(*state_, TenantRequest(R"pb(config { name: "zeta" }
                                                           fields: "admin")pb"));
  EXPECT_EQ(unset.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(unset.status().message(), HasSubstr("is the last one with `admin`"));
  ASSERT_TRUE(SetTenant(*state_, TenantRequest(R"pb(config { name: "acme" admin: true }
                                                    fields: "admin")pb"))
                  .ok());
  EXPECT_TRUE(DeleteTenant(*state_, "zeta").ok());
}

TEST_F(RoutingAdminTest, SwapPinsAndDrainKeepsSessionsAway) {
  const auto swapped = SwapTenantDrafter(*state_, "acme", "math");
  ASSERT_TRUE(swapped.ok()) << swapped.status();
  EXPECT_EQ(swapped->previous_drafter(), "code");
  EXPECT_EQ(swapped->tenant().config().drafter_policy(), v1::DRAFTER_POLICY_PINNED);
  EXPECT_EQ(PinnedTo("acme"), "math");
  EXPECT_EQ(SwapTenantDrafter(*state_, "nobody", "math").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SwapTenantDrafter(*state_, "acme", "prose").status().code(), absl::StatusCode::kNotFound);

  EXPECT_TRUE(DrainDrafter(*state_, "code", false)->config().draining());
  EXPECT_TRUE(state_->snapshot()->table().drafters[0].draining);
  EXPECT_EQ(SwapTenantDrafter(*state_, "acme", "code").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(DrainDrafter(*state_, "code", true)->config().draining());
  EXPECT_EQ(DrainDrafter(*state_, "prose", false).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RoutingAdminTest, ACanaryIsRolledBackOnceAndSaysSo) {
  ASSERT_TRUE(SetTenant(*state_, TenantRequest(R"pb(config {
                                                      name: "acme"
                                                      drafter: "code"
                                                      drafter_policy: DRAFTER_POLICY_CANARY
                                                      canary { drafter: "math" percent: 10 }
                                                    })pb"))
                  .ok());
  EXPECT_FALSE(
      EndCanary(*state_, "acme", "code", "prose", CanaryEnd::kRolledBack, "too little", absl::UnixEpoch())
          .value());
  EXPECT_TRUE(
      EndCanary(*state_, "acme", "code", "math", CanaryEnd::kRolledBack, "too little", absl::UnixEpoch())
          .value());
  EXPECT_FALSE(
      EndCanary(*state_, "acme", "code", "math", CanaryEnd::kRolledBack, "too little", absl::UnixEpoch())
          .value());
  EXPECT_FALSE(
      EndCanary(*state_, "nobody", "code", "math", CanaryEnd::kRolledBack, "too little", absl::UnixEpoch())
          .value());
  const v1::TenantInfo info = GetTenant(*state_, "acme").value();
  EXPECT_EQ(info.config().drafter_policy(), v1::DRAFTER_POLICY_PINNED);
  EXPECT_EQ(info.config().drafter(), "code");
  EXPECT_EQ(info.rolled_back(), "1970-01-01 00:00:00 UTC: too little");
  EXPECT_EQ(SetTenant(*state_, TenantRequest(R"pb(config { name: "acme" weight: 2 }
                                                  fields: "weight")pb"))
                ->rolled_back(),
            "");
}

TEST_F(RoutingAdminTest, APromotedCanaryIsTheTenantsDrafter) {
  ASSERT_TRUE(SetTenant(*state_, TenantRequest(R"pb(config {
                                                      name: "acme"
                                                      drafter: "code"
                                                      drafter_policy: DRAFTER_POLICY_CANARY
                                                      canary { drafter: "math" percent: 10 promote: true }
                                                    })pb"))
                  .ok());
  EXPECT_TRUE(
      EndCanary(*state_, "acme", "code", "math", CanaryEnd::kPromoted, "as good", absl::UnixEpoch()).value());
  EXPECT_FALSE(
      EndCanary(*state_, "acme", "code", "math", CanaryEnd::kPromoted, "as good", absl::UnixEpoch()).value());
  const v1::TenantInfo info = GetTenant(*state_, "acme").value();
  EXPECT_EQ(info.config().drafter_policy(), v1::DRAFTER_POLICY_PINNED);
  EXPECT_EQ(info.config().drafter(), "math");
  EXPECT_FALSE(info.config().has_canary());
  EXPECT_EQ(info.rolled_back(), "");
}

// A tenant that names a drafter and the drafter's deletion exclude one another, however they meet.
TEST_F(RoutingAdminTest, ConcurrentEditsLeaveAValidConfiguration) {
  constexpr int kRounds = 200;
  std::thread tenants([&] {
    for (int i = 0; i < kRounds; ++i) {
      (void)SetTenant(*state_, TenantRequest(R"pb(config { name: "acme" drafter: "new" }
                                                  fields: "drafter")pb"));
      (void)SetTenant(*state_, TenantRequest(R"pb(config { name: "acme" drafter: "code" }
                                                  fields: "drafter")pb"));
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    (void)SetDrafter(*state_,
                     DrafterRequest(R"pb(config { name: "new" endpoint: "d:1" draft_model: "m" })pb"));
    (void)DeleteDrafter(*state_, "new");
  }
  tenants.join();
  const auto listing = state_->store().List(kRoutingPrefix).value();
  EXPECT_TRUE(ResolveConfig(ConfigOf(state_->base(), listing).value()).ok());
  EXPECT_EQ(state_->snapshot()->version(), listing.version);
}

TEST_F(RoutingAdminTest, TheFeedTellsEverythingThenChanges) {
  ChangeFeed feed;
  std::vector<std::string> told;
  const auto next = [&] {
    told.clear();
    const auto events = feed.Next(*state_).value();
    for (const v1::WatchEvent& event : events) told.push_back(event.ShortDebugString().substr(0, 40));
    return events;
  };
  const auto first = next();
  ASSERT_EQ(first.size(), 5u);
  EXPECT_EQ(first[0].drafter().config().name(), "code");
  EXPECT_EQ(first[2].tenant().config().name(), "acme");
  EXPECT_EQ(first[4].synced(), state_->snapshot()->version());
  EXPECT_TRUE(next().empty());

  ASSERT_TRUE(SwapTenantDrafter(*state_, "acme", "math").ok());
  // The drafters' lists of tenants change along.
  const auto swapped = next();
  ASSERT_EQ(swapped.size(), 3u);
  EXPECT_EQ(swapped[2].tenant().config().drafter(), "math");
  ASSERT_TRUE(DeleteTenant(*state_, "acme").ok());
  const auto deleted = next();
  ASSERT_EQ(deleted.size(), 2u);
  EXPECT_EQ(deleted[1].deleted_tenant(), "acme");
}

}  // namespace
}  // namespace tandem::router
