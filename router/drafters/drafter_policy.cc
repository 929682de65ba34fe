#include "router/drafters/drafter_policy.h"

#include "common/base/hash.h"

namespace tandem::router {
namespace {

// Whether the request belongs to the share of `canary`. A request that does keeps doing so while the
// percentage rises.
bool InCanaryShare(const RoutingTable& table, const Canary& canary, absl::string_view request_id) {
  const uint64_t hash = HashBytes(request_id, HashBytes(table.drafters[canary.drafter].name));
  // The upper 53 bits as a number in [0, 1).
  constexpr double kScale = 1.0 / 9007199254740992.0;
  return static_cast<double>(hash >> 11) * kScale * 100.0 < canary.percent;
}

}  // namespace

DrafterCandidates NarrowDrafters(const RoutingTable& table, const Tenant& tenant,
                                 absl::string_view request_id, const DrafterFilter& can_draft) {
  const auto only = [&table](size_t drafter, absl::string_view reason) {
    if (table.drafters[drafter].absent) return DrafterCandidates{.reason = "absent"};
    if (table.drafters[drafter].draining) return DrafterCandidates{.reason = "draining"};
    return DrafterCandidates{.drafters = {drafter}, .reason = reason};
  };
  switch (tenant.policy) {
    case v1::DRAFTER_POLICY_OFF:
      return {.reason = "off"};
    case v1::DRAFTER_POLICY_AUTO: {
      DrafterCandidates candidates{.choose = true, .reason = "auto"};
      for (size_t drafter : tenant.allowed_drafters) {
        if (table.drafters[drafter].draining) continue;
        const bool fits = can_draft == nullptr || can_draft(table.drafters[drafter]);
        (fits ? candidates.drafters : candidates.unfit).push_back(drafter);
      }
      return candidates;
    }
    case v1::DRAFTER_POLICY_CANARY:
      if (tenant.canary.has_value() && !table.drafters[tenant.canary->drafter].draining &&
          InCanaryShare(table, *tenant.canary, request_id)) {
        return only(tenant.canary->drafter, "canary");
      }
      break;
    default:
      break;
  }
  if (!tenant.drafter.has_value()) return {.reason = "none"};
  return only(*tenant.drafter, "tenant");
}

}  // namespace tandem::router
