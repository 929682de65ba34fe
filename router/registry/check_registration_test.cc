#include "router/registry/check_registration.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/registry/testing/registrations.h"

namespace tandem::router {
namespace {

using testing::DrafterAt;
using ::testing::HasSubstr;
using testing::kVocabulary;
using testing::VerifierAt;

using Change = std::function<void(v1::ServerRegistration&)>;

TEST(CheckRegistrationTest, SaysWhichFieldIsWrong) {
  struct Case {
    std::string part;  // Of the message.
    Change change;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto verifier = [](v1::ServerRegistration& server) -> v1::RegisteredVerifier& {
    return *server.mutable_verifier();
  };
  const std::vector<Case> cases = {
      {"instance.name", [](auto& s) { s.mutable_instance()->clear_name(); }},
      {"instance.name", [](auto& s) { s.mutable_instance()->set_name("a b"); }},
      {"instance.name", [](auto& s) { s.mutable_instance()->set_name(std::string(129, 'n')); }},
      {"instance.instance", [](auto& s) { s.mutable_instance()->set_instance("short"); }},
      {"address", [](auto& s) { s.clear_address(); }},
      {"address", [](auto& s) { s.set_address("host"); }},
      {"address", [](auto& s) { s.set_address("host:0"); }},
      {"address", [](auto& s) { s.set_address("host:65536"); }},
      {"address", [](auto& s) { s.set_address("unix:/tmp/socket:1"); }},
      {"address", [](auto& s) { s.set_address("dns:///host:7002"); }},
      {"address", [](auto& s) { s.set_address("a,b:7002"); }},
      {"address", [](auto& s) { s.set_address("fd00::1:7002"); }},
      {"address", [](auto& s) { s.set_address(std::string(300, 'a') + ":7002"); }},
      {"version", [](auto& s) { s.set_version(std::string(65, 'v')); }},
      {"capacity.max_running", [](auto& s) { s.clear_capacity(); }},
      {"kind", [](auto& s) { s.clear_verifier(); }},
      {"verifier.model.name", [&](auto& s) { verifier(s).clear_model(); }},
      {"vocabulary_fingerprint",
       [&](auto& s) { verifier(s).mutable_model()->clear_vocabulary_fingerprint(); }},
      {"weight_type", [&](auto& s) { verifier(s).mutable_model()->set_weight_type(std::string(300, 'x')); }},
      {"verifier.weights_sha256: 5 bytes", [&](auto& s) { verifier(s).set_weights_sha256("short"); }},
      {"round_seconds: 0 rows", [&](auto& s) { verifier(s).add_round_seconds()->set_seconds(1); }},
      {"round_seconds",
       [&](auto& s) {
         v1::RoundSeconds& round = *verifier(s).add_round_seconds();
         round.set_rows(1);
         round.set_seconds(nan);
       }},
      {"65 entries",
       [&](auto& s) {
         for (uint32_t i = 1; i <= 65; ++i) verifier(s).add_round_seconds()->set_rows(i);
       }},
      {"drafter.models: 0 entries", [](auto& s) { s.mutable_drafter(); }},
      {"drafter.models: 17 entries",
       [](auto& s) {
         for (int i = 0; i < 17; ++i) s.mutable_drafter()->add_models();
       }},
      {"used twice",
       [](auto& s) {
         for (int i = 0; i < 2; ++i) s.mutable_drafter()->add_models()->mutable_model()->set_name("ngram");
       }},
      {"models[0].weights_sha256",
       [](auto& s) {
         s = DrafterAt("d", "d:1", 1, "m");
         s.mutable_drafter()->mutable_models(0)->clear_weights_sha256();
       }},
      {"level_seconds",
       [&](auto& s) {
         s = DrafterAt("d", "d:1", 1, "m");
         s.mutable_drafter()->mutable_models(0)->mutable_model()->set_level_seconds(-1);
       }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    v1::ServerRegistration server = VerifierAt("v", "verifier-0:7002", 1);
    ASSERT_TRUE(CheckRegistration(server).ok());
    cases[i].change(server);
    const absl::Status status = CheckRegistration(server);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cases[i].part)) << i;
    EXPECT_LT(status.message().size(), 400u) << i;
  }
}

TEST(CheckRegistrationTest, TakesAddressesOfEveryKind) {
  for (const char* address : {"verifier-0.tandem.svc:7002", "10.0.0.1:7002", "[fd00::1]:7002", "host_a:1"}) {
    EXPECT_TRUE(CheckRegistration(VerifierAt("v", address, 1)).ok()) << address;
  }
}

TEST(CheckRegistrationTest, IsHeldAgainstWhatTheRouterServes) {
  const std::vector<RegistrableModel> models = {{.name = "letters", .vocabulary_fingerprint = kVocabulary}};
  const Registration both{.verifiers = true, .drafters = true};
  EXPECT_TRUE(CheckUse(VerifierAt("v", "v:1", 1), both, models).ok());
  EXPECT_TRUE(CheckUse(DrafterAt("d", "d:1", 1, "m"), both, models).ok());
  const auto expect_refused = [&](const v1::ServerRegistration& server, const Registration& registration,
                                  const std::string& part) {
    const absl::Status status = CheckUse(server, registration, models);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  expect_refused(VerifierAt("v", "v:1", 1), {.drafters = true}, "registration: {verifiers: true}");
  expect_refused(DrafterAt("d", "d:1", 1, "m"), {.verifiers = true}, "registration: {drafters: true}");
  v1::ServerRegistration other = VerifierAt("v", "v:1", 1);
  other.mutable_verifier()->mutable_model()->set_name("numbers");
  expect_refused(other, both, "\"numbers\" is not served here, expected one of: letters");
  other = VerifierAt("v", "v:1", 1);
  other.mutable_verifier()->mutable_model()->set_vocabulary_fingerprint(5);
  expect_refused(other, both, "another vocabulary");
  other = DrafterAt("d", "d:1", 1, "m");
  other.mutable_drafter()->mutable_models(0)->mutable_model()->set_vocabulary_fingerprint(5);
  expect_refused(other, both, "draft model \"m\" has the vocabulary 0000000000000005");
  v1::ModelInfo& bridging = *other.mutable_drafter()->mutable_models(0)->mutable_model();
  bridging.add_bridged_vocabularies()->set_fingerprint(6);
  expect_refused(other, both, "bridges 1 others");
  bridging.add_bridged_vocabularies()->set_fingerprint(kVocabulary);
  EXPECT_TRUE(CheckRegistration(other).ok());
  EXPECT_TRUE(CheckUse(other, both, models).ok());
  for (int i = 0; i < 63; ++i) bridging.add_bridged_vocabularies()->set_fingerprint(8);
  EXPECT_THAT(std::string(CheckRegistration(other).message()), HasSubstr("bridged_vocabularies: 65 entries"));
  bridging.clear_bridged_vocabularies();
  // A source has no vocabulary of its own.
  other.mutable_drafter()->mutable_models(0)->clear_weights_sha256();
  other.mutable_drafter()->mutable_models(0)->mutable_model()->clear_vocabulary_fingerprint();
  EXPECT_TRUE(CheckRegistration(other).ok());
  EXPECT_TRUE(CheckUse(other, both, models).ok());
}

}  // namespace
}  // namespace tandem::router
