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

// What v1::RouterAdmin does, on a RoutingState: each function is one edit, with the errors that the service
// documents. Thread-safe; blocks for as long as the store takes to write.

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

// Pins the tenant to the drafter. The answer has the tenant and the drafter before.
absl::StatusOr<v1::SwapTenantDrafterResponse> SwapTenantDrafter(RoutingState& state,
                                                                const std::string& tenant,
                                                                const std::string& drafter);

// Ends the tenant's trial of `canary` against `own`, both by name. Rolled back, the tenant is pinned to
// `own`, and `reason` is kept with the time for whoever asks; promoted, it is pinned to `canary`. False when
// that trial is over already.
enum class CanaryEnd { kRolledBack, kPromoted };
absl::StatusOr<bool> EndCanary(RoutingState& state, const std::string& tenant, const std::string& own,
                               const std::string& canary, CanaryEnd end, absl::string_view reason,
                               absl::Time now);

// Turns the state, read again and again, into events. Not thread-safe.
class ChangeFeed {
 public:
  // What changed since the call before; the first time everything, and `synced`. Verifiers come before
  // drafters, and these before tenants; of verifiers, those of which something was said at run time.
  absl::StatusOr<std::vector<v1::WatchEvent>> Next(RoutingState& state);

 private:
  bool synced_ = false;
  // Of what was told, serialized, by name.
  std::map<std::string, std::string> tenants_;
  std::map<std::string, std::string> drafters_;
  std::map<std::string, v1::VerifierInfo> verifiers_;  // By key.
};

}  // namespace tandem::router
