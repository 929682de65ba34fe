// Sequences of edits by administrators and of registrations by servers: what is in force always resolves, and
// no token is ever told.

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "google/protobuf/text_format.h"
#include "router/registry/check_registration.h"
#include "router/registry/registrar.h"
#include "router/registry/testing/registrations.h"
#include "router/state/memory_lease_store.h"
#include "router/state/routing_admin.h"
#include "router/state/routing_state.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/config.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr absl::string_view kSecretToken = "the-secret-token-of-acme";

template <class Message>
Message TextMessage(const std::string& text) {
  Message message;
  Require(google::protobuf::TextFormat::ParseFromString(text, &message), text);
  return message;
}

v1::RouterConfig EditedConfig() {
  return TextMessage<v1::RouterConfig>(
      absl::StrCat(R"pb(
                     models { name: "letters" folder: "/m" verifiers: "v0:7002" }
                     drafters { name: "code" endpoint: "d0:7003" draft_model: "x" }
                     drafters { name: "math" endpoint: "d1:7003" draft_model: "y" }
                     registration { verifiers: true drafters: true })pb",
                   "tenants { name: \"acme\" drafter: \"code\" token: \"", kSecretToken, "\" }"));
}

// A message of the next bytes; one that is empty where they are none.
template <class Message>
Message ReadMessageOf(InputReader& reader) {
  Message message;
  const absl::string_view bytes = reader.LongBytes();
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) message.Clear();
  return message;
}

bool Taken(const absl::Status& status) {
  return status.ok() || Refused(status, "");
}

bool Edit(router::RoutingState& state, InputReader& reader) {
  switch (reader.Below(8)) {
    case 0:
      return Taken(router::SetTenant(state, ReadMessageOf<v1::SetTenantRequest>(reader)).status());
    case 1:
      return Taken(router::SetDrafter(state, ReadMessageOf<v1::SetDrafterRequest>(reader)).status());
    case 2:
      return Taken(router::DeleteTenant(state, std::string(reader.Bytes())));
    case 3:
      return Taken(router::DeleteDrafter(state, std::string(reader.Bytes())));
    case 4: {
      const bool undo = reader.Below(2) == 1;
      return Taken(router::DrainDrafter(state, std::string(reader.Bytes()), undo).status());
    }
    case 5:
      return Taken(router::AddVerifier(state, ReadMessageOf<v1::VerifierConfig>(reader)).status());
    case 6:
      return Taken(router::RemoveVerifier(state, ReadMessageOf<v1::VerifierConfig>(reader)));
    default: {
      const std::string tenant(reader.Bytes());
      return Taken(router::SwapTenantDrafter(state, tenant, std::string(reader.Bytes())).status());
    }
  }
}

void RequireInForce(router::RoutingState& state, router::ChangeFeed& feed) {
  const auto tenants = router::ListTenants(state);
  const auto drafters = router::ListDrafters(state);
  const auto verifiers = router::ListVerifiers(state);
  Require(tenants.ok() && drafters.ok() && verifiers.ok(), "what is there can be listed");
  for (const v1::TenantInfo& tenant : tenants->tenants()) {
    Require(tenant.config().token().empty(), "no token in an answer");
    Require(!absl::StrContains(tenant.SerializeAsString(), kSecretToken), "no secret in an answer");
  }
  Require(!state.condition().stale, "what is stored is in force");
  Require(feed.Next(state).ok(), "changes can be told");
  for (const router::Tenant& tenant : state.snapshot()->table().tenants) {
    Require(!tenant.drafter.has_value() || *tenant.drafter < state.snapshot()->table().drafters.size(),
            "a drafter that there is");
  }
}

bool RunAdmin(absl::string_view input) {
  InputReader reader(input);
  absl::StatusOr<std::unique_ptr<router::RoutingState>> state =
      router::RoutingState::InMemory(EditedConfig());
  Require(state.ok(), state.status().message());
  router::ChangeFeed feed;
  bool taken = false;
  for (int i = 0; i < 20 && !reader.empty(); ++i) {
    taken |= Edit(**state, reader);
    RequireInForce(**state, feed);
  }
  return taken;
}

std::string EditSeed(char kind, const google::protobuf::Message& message) {
  return std::string(1, kind) + WithLongLength(message.SerializeAsString());
}

std::vector<std::string> AdminSeeds() {
  const std::string tenant = EditSeed('\0', TextMessage<v1::SetTenantRequest>(
                                                R"pb(config {
                                                       name: "zeta"
                                                       token: "another secret"
                                                       drafter: "math"
                                                       weight: 3
                                                       partner: "code"
                                                       drafter_policy: DRAFTER_POLICY_CANARY
                                                       canary { drafter: "code" percent: 10 }
                                                     }
                                                     fields: "drafter"
                                                     fields: "weight")pb"));
  const std::string changed = EditSeed(
      '\0', TextMessage<v1::SetTenantRequest>(R"pb(config { name: "acme" admin: true tokens_per_minute: 7 }
                                                   fields: "admin"
                                                   expected_version: 1)pb"));
  const std::string drafter =
      EditSeed('\1', TextMessage<v1::SetDrafterRequest>(
                         R"pb(config { name: "new" endpoint: "d2:7003" draft_model: "z" trusted: true })pb"));
  const std::string verifier = EditSeed('\5', TextMessage<v1::VerifierConfig>(R"pb(model: "letters"
                                                                                   endpoint: "v1:7002")pb"));
  const std::string removed = EditSeed('\6', TextMessage<v1::VerifierConfig>(R"pb(model: "letters"
                                                                                  endpoint: "v1:7002")pb"));
  const std::string swap = "\7" + WithLength("acme") + WithLength("math");
  const std::string drain = std::string("\4\0", 2) + WithLength("math");
  return {tenant + changed + drafter, verifier + removed + swap,
          drafter + drain + swap + "\3" + WithLength("math"), "\2" + WithLength("acme") + tenant};
}

bool RunRegistration(absl::string_view input) {
  InputReader reader(input);
  ManualClock clock(absl::FromUnixSeconds(1'000'000));
  router::MemoryLeaseStore leases(&clock);
  size_t num_verifiers = 0;
  const router::Registrar::Options options = {
      .servers = {.registration = {.verifiers = true, .drafters = true},
                  .models = {{.name = "letters", .vocabulary_fingerprint = router::testing::kVocabulary}},
                  .max_servers = 8},
      .leases = &leases,
      .clock = &clock,
      .is_configured = [](const std::string& name) { return name == "configured"; },
      .set_verifiers =
          [&](size_t, const std::vector<router::RegisteredEndpoint>& verifiers) {
            num_verifiers = verifiers.size();
          },
      .set_drafters =
          [](const std::vector<router::Drafter>& drafters) {
            for (const router::Drafter& drafter : drafters)
              Require(router::IsGoodName(drafter.name), "a drafter's name");
          },
      .set_counts = [](size_t, size_t) {}};
  router::Registrar registrar(options);
  bool taken = false;
  for (int i = 0; i < 40 && !reader.empty(); ++i) {
    switch (reader.Below(4)) {
      case 0:
      case 1: {
        const auto answer = registrar.Register(ReadMessageOf<v1::RegisterRequest>(reader));
        if (Taken(answer.status())) {
          taken = true;
          Require(answer->ttl_seconds() > answer->renew_after_seconds(), "time to renew");
        }
        break;
      }
      case 2:
        Taken(registrar.Deregister(ReadMessageOf<v1::DeregisterRequest>(reader)));
        break;
      default:
        clock.Advance(absl::Seconds(reader.Byte()) / 4);
        registrar.Tick();
    }
    const std::vector<v1::ServerRegistration> servers = registrar.Servers();
    Require(servers.size() <= 8 && num_verifiers <= 8, "no more servers than may be");
    for (const v1::ServerRegistration& server : servers)
      Require(router::CheckRegistration(server).ok(), "a server that makes sense");
  }
  return taken;
}

std::vector<std::string> RegistrationSeeds() {
  const auto server = [](char kind, v1::ServerRegistration registration) {
    v1::RegisterRequest request;
    *request.mutable_server() = std::move(registration);
    return EditSeed(kind, request);
  };
  using router::testing::DrafterAt;
  using router::testing::VerifierAt;
  const std::string verifier = server('\0', VerifierAt("v-0", "10.0.0.1:7002", 1));
  const std::string newer = server('\0', VerifierAt("v-0", "10.0.0.1:7002", 2));
  const std::string drafter = server('\1', DrafterAt("d-0", "[fd00::1]:7003", 3, "code"));
  const std::string left = server('\2', VerifierAt("v-0", "10.0.0.1:7002", 1));
  v1::ServerRegistration whole = VerifierAt("v-1", "host.example:7002", 9);
  whole.mutable_verifier()->set_arithmetic("cpu-bf16");
  v1::RoundSeconds& round = *whole.mutable_verifier()->add_round_seconds();
  round.set_rows(1);
  round.set_seconds(0.01);
  whole.mutable_capacity()->set_kv_tokens(1 << 20);
  const std::string later("\3\40", 2);
  return {verifier + drafter + later + left, verifier + newer + left + later,
          server('\0', whole) + later + later + later, drafter + drafter + later};
}

const Registration kAdmin({.name = "admin", .run = RunAdmin, .seeds = AdminSeeds, .spoilt = 1500});
const Registration kRegistration(
    {.name = "registration", .run = RunRegistration, .seeds = RegistrationSeeds, .spoilt = 4000});

}  // namespace
}  // namespace tandem::fuzz
