#include "router/state/tenants_file.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/state/routing_admin.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

constexpr char kFirst[] = "tenants: [{name: first, token: t-first, drafter: code}]";

class TenantsFileTest : public ::testing::Test {
 protected:
  TenantsFileTest() {
    path_ = (folder_ / "tenants.yaml").string();
    config_ = testing::LettersConfig({"verifier:7002"});
    config_.mutable_tenants(1)->set_admin(true);
  }

  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }

  void Follow(const std::string& text) {
    Write(text);
    state_ = RoutingState::InMemory(AddTenantsFile(config_, path_).value()).value();
    follower_.emplace(
        TenantsFileFollower::Options{.path = path_, .config = config_, .interval = absl::Milliseconds(2)},
        Secret(text), state_.get(), &registry_);
  }

  bool Has(const std::string& tenant) const {
    const auto snapshot = state_->snapshot();
    for (const Tenant& candidate : snapshot->table().tenants) {
      if (candidate.name == tenant) return true;
    }
    return false;
  }

  // The value of a line of /metrics.
  double Metric(const std::string& series) const {
    const std::string text = registry_.Expose();
    const size_t at = text.find(absl::StrCat("\n", series, " "));
    return at == std::string::npos ? -1.0 : std::atof(text.c_str() + at + series.size() + 2);
  }
  double Reloads(const std::string& outcome) const {
    return Metric(absl::StrCat("tandem_router_tenants_file_reloads_total{outcome=\"", outcome, "\"}"));
  }
  double Refused() const { return Metric("tandem_router_tenants_file_refused"); }

  template <class Condition>
  static bool Eventually(const Condition& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
  std::string path_;
  v1::RouterConfig config_;
  MetricsRegistry registry_;
  std::unique_ptr<RoutingState> state_;
  std::optional<TenantsFileFollower> follower_;
};

TEST_F(TenantsFileTest, AddsToTheConfiguration) {
  Write(
      "drafters: [{name: prose, endpoint: 'd:1', draft_model: p}]\n"
      "tenants: [{name: first, token: t, drafter: prose}]");
  const auto both = AddTenantsFile(config_, path_);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->drafters_size(), 3);
  EXPECT_EQ(both->tenants(2).name(), "first");
  EXPECT_EQ(both->models_size(), 1);
}

TEST_F(TenantsFileTest, SaysWhatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"tenants: [{name: first, token: t, drafter: nobody}]",
       "tenant \"first\".drafter: \"nobody\" is not a configured drafter"},
      {"tenants: [{name: acme, token: t}]", "\"acme\" is used twice"},
      {"tenants: [{name: first, token: secret-a}]", "tokens must be unique"},
      {"models: [{name: other}]", "expected drafters and tenants"},
      {"allow_anonymous: true", "expected drafters and tenants"},
      {"tenants: [{name: first, tokn: t}]", "unknown key"},
      {"tenants: [", "tenants.yaml"},
      {" \n", "empty, expected drafters or tenants"},
  };
  for (const auto& [text, message] : cases) {
    Write(text);
    const absl::Status status = AddTenantsFile(config_, path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(message)) << text;
    EXPECT_THAT(status.message(), HasSubstr(path_)) << text;
  }
  std::filesystem::remove(path_);
  EXPECT_THAT(AddTenantsFile(config_, path_).status().message(), HasSubstr(path_));
}

TEST_F(TenantsFileTest, ChangesAreAppliedAsAWhole) {
  Follow(kFirst);
  ASSERT_TRUE(Has("first"));
  Write("tenants: [{name: first, token: t-first, drafter: math}, {name: second, token: t-second}]");
  ASSERT_TRUE(Eventually([&] { return Has("second"); }));
  EXPECT_TRUE(Eventually([&] { return Reloads("applied") == 1; }));
  // What the file drops goes, what the configuration or an administrator has made stays.
  v1::SetTenantRequest request;
  request.mutable_config()->set_name("third");
  request.mutable_config()->set_token("t-third");
  ASSERT_TRUE(SetTenant(*state_, request).ok());
  Write(kFirst);
  ASSERT_TRUE(Eventually([&] { return !Has("second"); }));
  EXPECT_TRUE(Has("first") && Has("third") && Has("acme"));
  EXPECT_EQ(Refused(), 0);
}

TEST_F(TenantsFileTest, ABadFileKeepsWhatThereIs) {
  Follow(kFirst);
  const auto before = state_->snapshot();
  Write("tenants: [{name: second, token: t-second}, {name: first, token: t-first, drafter: nobody}]");
  ASSERT_TRUE(Eventually([&] { return Reloads("refused") == 1; }));
  EXPECT_EQ(Refused(), 1);
  EXPECT_EQ(state_->snapshot(), before);
  // Gone altogether: the same.
  std::filesystem::remove(path_);
  ASSERT_TRUE(Eventually([&] { return Reloads("refused") == 2; }));
  EXPECT_EQ(state_->snapshot(), before);
  // Taken back.
  Write(kFirst);
  EXPECT_TRUE(Eventually([&] { return Refused() == 0; }));
  EXPECT_EQ(Reloads("applied"), 0);
}

TEST_F(TenantsFileTest, WhatDependsOnTheStateIsAppliedOnceItCanBe) {
  Follow(kFirst);
  Write("tenants: [{name: first, token: t-first, drafter: code}, {name: second, token: t-third}]");
  v1::SetTenantRequest request;
  request.mutable_config()->set_name("third");
  request.mutable_config()->set_token("t-third");
  ASSERT_TRUE(Eventually([&] { return Has("second"); }));
  ASSERT_FALSE(SetTenant(*state_, request).ok()) << "two tenants with one token";
  Write(kFirst);
  ASSERT_TRUE(Eventually([&] { return !Has("second"); }));
  ASSERT_TRUE(SetTenant(*state_, request).ok());
  Write("tenants: [{name: first, token: t-first, drafter: code}, {name: second, token: t-third}]");
  ASSERT_TRUE(Eventually([&] { return Refused() == 1; }));
  EXPECT_FALSE(Has("second"));
  ASSERT_TRUE(DeleteTenant(*state_, "third").ok());
  EXPECT_TRUE(Eventually([&] { return Has("second"); }));
}

// As Kubernetes changes a ConfigMap that is mounted: the file is a link through a folder that is a link.
TEST_F(TenantsFileTest, FollowsASymbolicLinkThatIsSwitched) {
  const auto version = [this](const std::string& name, const std::string& text) {
    std::filesystem::create_directory(folder_ / name);
    std::ofstream(folder_ / name / "tenants.yaml") << text;
    std::filesystem::create_directory_symlink(name, folder_ / "new");
    std::filesystem::rename(folder_ / "new", folder_ / "data");
  };
  version("v1", kFirst);
  std::filesystem::create_symlink("data/tenants.yaml", folder_ / "linked.yaml");
  const std::string path = (folder_ / "linked.yaml").string();
  state_ = RoutingState::InMemory(AddTenantsFile(config_, path).value()).value();
  follower_.emplace(
      TenantsFileFollower::Options{.path = path, .config = config_, .interval = absl::Milliseconds(2)},
      Secret(kFirst), state_.get(), &registry_);
  version("v2", "tenants: [{name: second, token: t-second}]");
  std::filesystem::remove_all(folder_ / "v1");
  EXPECT_TRUE(Eventually([&] { return Has("second") && !Has("first"); }));
}

}  // namespace
}  // namespace tandem::router
