// State files (SQLite) that were cut, flipped, or are another program's.

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "router/drafters/learned_state.h"
#include "router/drafters/policy_memory.h"
#include "router/state/open_store.h"
#include "router/state/routing_state.h"
#include "router/state/sqlite_store.h"
#include "tandem/v1/config.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

v1::RouterConfig StateConfig() {
  v1::RouterConfig config;
  v1::TargetModelConfig& model = *config.add_models();
  model.set_name("m");
  model.set_folder("/m");
  model.add_verifiers("127.0.0.1:7002");
  v1::DrafterConfig& drafter = *config.add_drafters();
  drafter.set_name("d");
  drafter.set_endpoint("127.0.0.1:7003");
  drafter.set_draft_model("x");
  v1::TenantConfig& tenant = *config.add_tenants();
  tenant.set_name("acme");
  tenant.set_token("secret");
  tenant.set_drafter("d");
  return config;
}

std::string CleanPath() {
  const std::string path = absl::StrCat(ScratchFolder(), "/state.db");
  for (const char* const other : {"", "-wal", "-shm", "-journal", ".good"})
    std::filesystem::remove(path + other);
  return path;
}

bool RunStateFile(absl::string_view input) {
  const std::string path = CleanPath();
  ScratchFile("state.db", input);
  absl::StatusOr<std::unique_ptr<router::SqliteStore>> store =
      router::SqliteStore::Open(path, {.poll_interval = absl::Hours(1),
                                       .busy_timeout = absl::Milliseconds(1),
                                       .copy_interval = absl::InfiniteDuration()});
  if (!store.ok()) return Refused(store.status(), path);
  for (const char* const prefix : {"", "routing/"}) {
    if (const auto listing = (*store)->List(prefix); !listing.ok()) Refused(listing.status(), path);
  }
  router::PolicyMemory policies;
  if (const absl::Status status = router::ReadPolicies(**store, policies); !status.ok())
    Refused(status, path);
  const absl::StatusOr<std::unique_ptr<router::RoutingState>> state =
      router::RoutingState::Open(StateConfig(), *std::move(store));
  if (!state.ok()) {
    Refused(state.status(), "");
    return false;
  }
  Require((*state)->snapshot() != nullptr, "a routing table");
  return true;
}

std::vector<std::string> StateFileSeeds() {
  const std::string path = CleanPath();
  {
    auto store = router::SqliteStore::Open(path);
    Require(store.ok(), store.status().message());
    Require(router::PutBlob(**store, "window-policies", std::string(300, 'p')).ok(), "a blob");
    const auto state = router::RoutingState::Open(StateConfig(), *std::move(store));
    Require(state.ok(), state.status().message());
  }
  const absl::StatusOr<std::string> bytes = ReadFile(path, size_t{1} << 20);
  Require(bytes.ok(), bytes.status().message());
  return {*bytes, ""};
}

const Registration kStateFile(
    {.name = "state_file", .run = RunStateFile, .seeds = StateFileSeeds, .spoilt = 300});

}  // namespace
}  // namespace tandem::fuzz
