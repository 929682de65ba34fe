#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/state/routing_state.h"
#include "tandem/v1/admin.pb.h"

namespace tandem::router {

// The edits of v1::RouterAdmin on a RoutingState, one function each, with the errors that the service
// documents. Thread-safe. They block while the store writes.

absl::StatusOr<v1::ListTenantsResponse> ListTenants(RoutingState& state);
absl::StatusOr<v1::TenantInfo> GetTenant(RoutingState& state, const std::string& name);
absl::StatusOr<v1::TenantInfo> SetTenant(RoutingState& state, const v1::SetTenantRequest& request);
absl::Status DeleteTenant(RoutingState& state, const std::string& name);

absl::StatusOr<v1::ListDraftersResponse> ListDrafters(RoutingState& state);
absl::StatusOr<v1::DrafterInfo> GetDrafter(RoutingState& state, const std::string& name);
absl::StatusOr<v1::DrafterInfo> SetDrafter(RoutingState& state, const v1::SetDrafterRequest& request);
absl::Status DeleteDrafter(RoutingState& state, const std::string& name);
absl::StatusOr<v1::DrafterInfo> DrainDrafter(RoutingState& state, const std::string& name, bool undo);

absl::StatusOr<v1::ListVerifiersResponse> ListVerifiers(RoutingState& state);
absl::StatusOr<v1::VerifierInfo> AddVerifier(RoutingState& state, const v1::VerifierConfig& verifier);
absl::Status RemoveVerifier(RoutingState& state, const v1::VerifierConfig& verifier);

// Pins the tenant to the drafter. The answer holds the tenant and its previous drafter.
absl::StatusOr<v1::SwapTenantDrafterResponse> SwapTenantDrafter(RoutingState& state,
                                                                const std::string& tenant,
                                                                const std::string& drafter);

// Ends the tenant's trial of `canary` against `own`, both by name. A rollback pins the tenant to `own` and
// stores `reason` and the time, for display. A promotion pins the tenant to `canary`. False if the trial is
// over already.
enum class CanaryEnd { kRolledBack, kPromoted };
absl::StatusOr<bool> EndCanary(RoutingState& state, const std::string& tenant, const std::string& own,
                               const std::string& canary, CanaryEnd end, absl::string_view reason,
                               absl::Time now);

// Reads the state repeatedly and turns differences into events. Not thread-safe.
class ChangeFeed {
 public:
  // The changes since the previous call; the first call returns everything, and `synced`. Verifiers come
  // first, then drafters, then tenants. Only verifiers that were added or removed at run time are included.
  absl::StatusOr<std::vector<v1::WatchEvent>> Next(RoutingState& state);

 private:
  bool synced_ = false;
  // What was sent, serialized, by name.
  std::map<std::string, std::string> tenants_;
  std::map<std::string, std::string> drafters_;
  std::map<std::string, v1::VerifierInfo> verifiers_;  // By key.
};

}  // namespace tandem::router
