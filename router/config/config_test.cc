#include "router/config/config.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kValid[] = R"pb(
  models { name: "big" folder: "/models/big" verifiers: "v0:7002" verifiers: "v1:7002" }
  models { name: "small" folder: "/models/small" verifiers: "v2:7002" }
  drafters { name: "code" endpoint: "d0:7003" draft_model: "draft-code" }
  drafters { name: "math" endpoint: "d0:7003" draft_model: "draft-math" }
  drafters { name: "general" endpoint: "d1:7003" draft_model: "draft-general" }
  tenants {
    name: "acme"
    token: "secret-a"
    drafter: "code"
    window_policy: "analytic"
    allowed_window_policies: "goodput"
    adapter: "own"
    allowed_adapters: "other"
    max_concurrent_requests: 4
  }
  tenants { name: "zeta" token: "secret-z" models: "small" drafter: "math" allowed_drafters: "general" }
)pb";

v1::RouterConfig Parse(const std::string& text) {
  v1::RouterConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

std::string ErrorOf(const v1::RouterConfig& config) {
  const absl::StatusOr<RoutingTable> table = ResolveConfig(config);
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(table.status().message().data(), table.status().message().size());
}

TEST(ConfigTest, ResolvesReferences) {
  const absl::StatusOr<RoutingTable> table = ResolveConfig(Parse(kValid));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->models[0].verifiers, ElementsAre("v0:7002", "v1:7002"));
  ASSERT_EQ(table->tenants.size(), 2u);
  const Tenant& acme = table->tenants[0];
  EXPECT_THAT(acme.models, ElementsAre(0, 1));
  EXPECT_EQ(acme.drafter, 0u);
  EXPECT_THAT(acme.allowed_drafters, ElementsAre(0, 1, 2));
  EXPECT_EQ(acme.max_concurrent_requests, 4u);
  EXPECT_EQ(acme.window_policy, "analytic");
  EXPECT_THAT(acme.allowed_window_policies, ElementsAre("goodput", "analytic")) << "its own too";
  EXPECT_EQ(acme.adapter, "own");
  EXPECT_THAT(acme.allowed_adapters, ElementsAre("other", "own")) << "its own too";
  const Tenant& zeta = table->tenants[1];
  EXPECT_THAT(zeta.models, ElementsAre(1));
  EXPECT_THAT(zeta.allowed_drafters, ElementsAre(1, 2)) << "its own drafter and the listed one";
  EXPECT_NE(acme.cache_salt, zeta.cache_salt);
  EXPECT_EQ(table->anonymous, std::nullopt);
  EXPECT_EQ(table->max_concurrent_requests, 1024u);
}

TEST(ConfigTest, DraftersAreTrustedOnlyWhereItIsSaid) {
  v1::RouterConfig config = Parse(kValid);
  config.mutable_drafters(1)->set_trusted(true);
  const absl::StatusOr<RoutingTable> table = ResolveConfig(config);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_FALSE(table->drafters[0].trusted);
  EXPECT_TRUE(table->drafters[1].trusted);
}

TEST(ConfigTest, AnonymousMayUseEverything) {
  v1::RouterConfig config = Parse(kValid);
  config.clear_tenants();
  config.set_allow_anonymous(true);
  const absl::StatusOr<RoutingTable> table = ResolveConfig(config);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->anonymous, 0u);
  EXPECT_EQ(table->tenants[0].name, "anonymous");
  EXPECT_THAT(table->tenants[0].models, ElementsAre(0, 1));
  EXPECT_THAT(table->tenants[0].allowed_drafters, ElementsAre(0, 1, 2));
  EXPECT_EQ(table->tenants[0].drafter, std::nullopt);
  EXPECT_FALSE(table->tenants[0].token.has_value());
}

TEST(ConfigTest, DigestOfTokenIsItsSha256) {
  EXPECT_EQ(absl::BytesToHexString(std::string(reinterpret_cast<const char*>(Sha256("abc").data()), 32)),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  v1::RouterConfig config = Parse(kValid);
  config.mutable_tenants(0)->clear_token();
  config.mutable_tenants(0)->set_token_sha256(
      "BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const absl::StatusOr<RoutingTable> table = ResolveConfig(config);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->tenants[0].token->Text(), DigestToken("abc", "").Text());
}

TEST(ConfigTest, DigestsMayBeSalted) {
  const std::string text = DigestToken("abc", "0123456789abcdef").Text();
  // printf abc | openssl sha256 -binary | cat <(printf 0123456789abcdef) - | openssl sha256
  EXPECT_EQ(text,
            "30313233343536373839616263646566:"
            "d1ac8e7e6da0030b25557037ddeb0347b6d7e216819a8e43ffd51899f11ac3d1");
  v1::RouterConfig config = Parse(kValid);
  config.mutable_tenants(0)->clear_token();
  config.mutable_tenants(0)->set_token_sha256(text);
  const auto table = ResolveConfig(config);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_TRUE(table->tenants[0].token->Matches(Sha256("abc")));
  EXPECT_FALSE(table->tenants[0].token->Matches(Sha256("abd")));
  EXPECT_FALSE(table->tenants[0].token->Matches(DigestToken("abc", "0123456789abcdef").digest));
}

// Each case breaks the valid configuration in one place.
struct BadConfig {
  const char* name;
  void (*change)(v1::RouterConfig&);
  const char* error;
};

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, NamesTheField) {
  v1::RouterConfig config = Parse(kValid);
  GetParam().change(config);
  EXPECT_THAT(ErrorOf(config), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadConfigTest,
    ::testing::Values(
        BadConfig{"NoModels", [](auto& c) { c.clear_models(); }, "models: empty"},
        BadConfig{"NoModelName", [](auto& c) { c.mutable_models(0)->clear_name(); },
                  "models[0].name: missing"},
        BadConfig{"BlankInName", [](auto& c) { c.mutable_models(0)->set_name("a b"); },
                  "models[0].name: \"a b\""},
        BadConfig{"LongName", [](auto& c) { c.mutable_drafters(0)->set_name(std::string(129, 'x')); },
                  "drafters[0].name: "},
        BadConfig{"NoFolder", [](auto& c) { c.mutable_models(1)->clear_folder(); },
                  "models[1].folder: missing"},
        BadConfig{"SameModelName", [](auto& c) { c.mutable_models(1)->set_name("big"); },
                  "models[1].name: \"big\" is used twice"},
        BadConfig{"NoVerifiers", [](auto& c) { c.mutable_models(0)->clear_verifiers(); },
                  "models[0].verifiers: empty, expected at least one verifier"},
        BadConfig{"EmptyVerifier", [](auto& c) { c.mutable_models(0)->set_verifiers(1, ""); },
                  "models[0].verifiers[1]: empty"},
        BadConfig{"SameVerifier", [](auto& c) { c.mutable_models(0)->set_verifiers(1, "v0:7002"); },
                  "models[0].verifiers[1]: \"v0:7002\" is listed twice"},
        BadConfig{"BadVerifierName",
                  [](auto& c) { c.mutable_models(0)->set_verifiers(1, "dns:///verifier"); },
                  "models[0].verifiers[1]: \"dns:///verifier\", expected \"dns:///host:port\""},
        BadConfig{"NoEndpoint", [](auto& c) { c.mutable_drafters(1)->clear_endpoint(); },
                  "drafters[1].endpoint: empty"},
        BadConfig{"NoDraftModel", [](auto& c) { c.mutable_drafters(1)->clear_draft_model(); },
                  "drafters[1].draft_model: missing"},
        BadConfig{"SameDrafterName", [](auto& c) { c.mutable_drafters(1)->set_name("code"); },
                  "drafters[1].name: \"code\" is used twice"},
        BadConfig{"NoTenants", [](auto& c) { c.clear_tenants(); }, "tenants: empty"},
        BadConfig{"SameTenantName", [](auto& c) { c.mutable_tenants(1)->set_name("acme"); },
                  "tenants[1].name: \"acme\" is used twice"},
        BadConfig{"NoToken", [](auto& c) { c.mutable_tenants(0)->clear_token(); },
                  "tenants[0]: expected exactly one of token and token_sha256, found none"},
        BadConfig{"TwoTokens", [](auto& c) { c.mutable_tenants(0)->set_token_sha256(std::string(64, '0')); },
                  "tenants[0]: expected exactly one of token and token_sha256, found both"},
        BadConfig{"SameToken", [](auto& c) { c.mutable_tenants(1)->set_token("secret-a"); },
                  "tenants[1]: has the same token as tenants[0]"},
        BadConfig{"BlankInToken", [](auto& c) { c.mutable_tenants(1)->set_token("a b"); },
                  "tenants[1].token: "},
        BadConfig{"ShortDigest",
                  [](auto& c) {
                    c.mutable_tenants(1)->clear_token();
                    c.mutable_tenants(1)->set_token_sha256("abcd");
                  },
                  "tenants[1].token_sha256: expected 64 hexadecimal digits, found 4"},
        BadConfig{"DigestNotHex",
                  [](auto& c) {
                    c.mutable_tenants(1)->clear_token();
                    c.mutable_tenants(1)->set_token_sha256(std::string(64, 'g'));
                  },
                  "tenants[1].token_sha256: expected 64 hexadecimal digits"},
        BadConfig{"UnknownModel", [](auto& c) { c.mutable_tenants(1)->set_models(0, "huge"); },
                  "tenants[1].models[0]: \"huge\" is not a configured model"},
        BadConfig{"UnknownDrafter", [](auto& c) { c.mutable_tenants(1)->set_drafter("foo"); },
                  "tenants[1].drafter: \"foo\" is not a configured drafter"},
        BadConfig{"UnknownPartner", [](auto& c) { c.mutable_tenants(1)->set_partner("foo"); },
                  "tenants[1].partner: \"foo\" is not a configured drafter"},
        BadConfig{"PartnerOfItself", [](auto& c) { c.mutable_tenants(1)->set_partner("math"); },
                  "tenants[1].partner: \"math\" is the tenant's drafter already"},
        BadConfig{"UnknownAllowed", [](auto& c) { c.mutable_tenants(1)->set_allowed_drafters(0, "foo"); },
                  "tenants[1].allowed_drafters[0]: \"foo\" is not a configured drafter"},
        BadConfig{"UnknownPolicy", [](auto& c) { c.mutable_tenants(1)->set_window_policy("fxed"); },
                  "tenants[1].window_policy: \"fxed\", expected one of "},
        BadConfig{"UnknownAllowedPolicy",
                  [](auto& c) { c.mutable_tenants(1)->add_allowed_window_policies("fxed"); },
                  "tenants[1].allowed_window_policies[0]: \"fxed\", expected one of "},
        BadConfig{"EmptyAllowedPolicy",
                  [](auto& c) { c.mutable_tenants(1)->add_allowed_window_policies(""); },
                  "tenants[1].allowed_window_policies[0]: empty, expected a window policy"},
        BadConfig{"BadAdapter", [](auto& c) { c.mutable_tenants(1)->set_adapter("a b"); },
                  "tenants[1].adapter: \"a b\", expected at most 128 printable"},
        BadConfig{"EmptyAllowedAdapter", [](auto& c) { c.mutable_tenants(1)->add_allowed_adapters(""); },
                  "tenants[1].allowed_adapters[0]: \"\", expected at most 128 printable"},
        BadConfig{"PinnedToNothing",
                  [](auto& c) {
                    c.mutable_tenants(0)->clear_drafter();
                    c.mutable_tenants(0)->set_drafter_policy(v1::DRAFTER_POLICY_PINNED);
                  },
                  "tenants[0].drafter: missing; drafter_policy pinned needs one"},
        BadConfig{"NoCanary",
                  [](auto& c) { c.mutable_tenants(0)->set_drafter_policy(v1::DRAFTER_POLICY_CANARY); },
                  "tenants[0].canary: missing"},
        BadConfig{"CanaryWithoutPolicy", [](auto& c) { c.mutable_tenants(0)->mutable_canary(); },
                  "tenants[0].canary: given, but drafter_policy is not canary"},
        BadConfig{"UnknownCanary",
                  [](auto& c) {
                    c.mutable_tenants(0)->set_drafter_policy(v1::DRAFTER_POLICY_CANARY);
                    c.mutable_tenants(0)->mutable_canary()->set_drafter("foo");
                  },
                  "tenants[0].canary.drafter: \"foo\" is not a configured drafter"},
        BadConfig{"CanaryPercent",
                  [](auto& c) {
                    c.mutable_tenants(0)->set_drafter_policy(v1::DRAFTER_POLICY_CANARY);
                    c.mutable_tenants(0)->mutable_canary()->set_percent(101.0);
                  },
                  "tenants[0].canary.percent: 101, expected 0 to 100"},
        BadConfig{"Weight", [](auto& c) { c.mutable_tenants(0)->set_weight(1001); },
                  "tenants[0].weight: 1001, expected at most 1000"},
        BadConfig{"AnonymousTaken",
                  [](auto& c) {
                    c.set_allow_anonymous(true);
                    c.mutable_tenants(0)->set_name("anonymous");
                  },
                  "tenants[0].name: \"anonymous\" is reserved"},
        BadConfig{"NoConcurrency", [](auto& c) { c.set_max_concurrent_requests(0); },
                  "max_concurrent_requests: 0, expected at least 1"}),
    [](const auto& bad) { return bad.param.name; });

TEST(ConfigTest, WhereDraftersMayRegisterTheyNeedNotBeThere) {
  v1::RouterConfig config = Parse(kValid);
  config.mutable_drafters()->RemoveLast();  // "general", which the tenant "zeta" may name.
  EXPECT_THAT(ErrorOf(config),
              HasSubstr("tenants[1].allowed_drafters[0]: \"general\" is not a configured drafter"));
  config.mutable_registration()->set_drafters(true);
  absl::StatusOr<RoutingTable> table = ResolveConfig(config);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->drafters.size(), 3u);
  EXPECT_EQ(table->drafters[2].name, "general");
  EXPECT_TRUE(table->drafters[2].absent && table->drafters[2].draining);
  EXPECT_EQ(table->registration.ttl, absl::Seconds(15));
  EXPECT_FALSE(table->registration.verifiers);
  // What is configured goes before.
  const std::vector<Drafter> registered = {{.name = "general", .endpoint = "g:1", .draft_model = "general"},
                                           {.name = "code", .endpoint = "c:1", .draft_model = "code"}};
  table = ResolveConfig(config, registered);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->drafters.size(), 3u);
  EXPECT_EQ(table->drafters[0].endpoint, "d0:7003");
  EXPECT_EQ(table->drafters[2].endpoint, "g:1");
  EXPECT_FALSE(table->drafters[2].absent);
  EXPECT_THAT(table->tenants[0].allowed_drafters, ElementsAre(0, 1, 2));
  // A name that could never be one is an error all the same.
  config.mutable_tenants(0)->set_drafter("a b");
  EXPECT_THAT(ErrorOf(config), HasSubstr("tenants[0].drafter"));
}

TEST(ConfigTest, WhereVerifiersMayRegisterNoneNeedsToBeListed) {
  v1::RouterConfig config = Parse(kValid);
  config.mutable_models(0)->clear_verifiers();
  EXPECT_THAT(ErrorOf(config), HasSubstr("models[0].verifiers: empty"));
  config.mutable_registration()->set_verifiers(true);
  EXPECT_TRUE(ResolveConfig(config).ok());
  config.mutable_registration()->set_ttl_seconds(2);
  EXPECT_THAT(ErrorOf(config), HasSubstr("registration.ttl_seconds: 2, expected 3 to 3600"));
  config.mutable_registration()->set_ttl_seconds(0);
  config.mutable_registration()->set_max_per_address(513);
  EXPECT_THAT(ErrorOf(config), HasSubstr("registration.max_per_address: 513, expected at most 512"));
}

TEST(ConfigTest, ReportsEveryErrorAndNoToken) {
  v1::RouterConfig config = Parse(kValid);
  config.mutable_models(0)->clear_verifiers();
  config.mutable_tenants(0)->set_drafter("foo");
  config.mutable_tenants(1)->set_token("secret-a");
  const std::string error = ErrorOf(config);
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(error, '\n')).size(), 3u) << error;
  EXPECT_THAT(error, Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace tandem::router
