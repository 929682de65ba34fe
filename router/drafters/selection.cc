#include "router/drafters/selection.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "router/verifiers/verifier_traits.h"

namespace tandem::router {
namespace {

std::string Shown(absl::string_view name) {
  return absl::CHexEscape(name.substr(0, 128));
}

// `field` names the request's in messages.
absl::StatusOr<size_t> FindAllowed(const RoutingTable& table, const Tenant& tenant, const std::string& name,
                                   absl::string_view field) {
  for (size_t drafter : tenant.allowed_drafters) {
    if (table.drafters[drafter].name == name) return drafter;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": \"", Shown(name), "\" is unknown or not allowed for this tenant"));
}

// For requests that insist on speculation. Without a drafter the verifier may draft by itself; it knows.
absl::Status CheckInsistence(const DrafterSelection& selection, bool names_drafter) {
  const absl::string_view reason = selection.reason;
  absl::string_view why;
  if (reason == "off") why = "speculation is off for the tenant";
  if (names_drafter && reason == "draining") why = "the drafter takes no new sessions";
  if (names_drafter && reason == "absent") why = "the drafter is not registered now";
  if (why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("speculation.mode: ON, but nothing could draft: ", why));
}

}  // namespace

absl::StatusOr<size_t> SelectModel(const RoutingTable& table, const Tenant& tenant, absl::string_view name) {
  if (name.empty()) return tenant.models.front();
  for (size_t model : tenant.models) {
    if (table.models[model].name == name) return model;
  }
  return absl::NotFoundError(absl::StrCat("model: \"", Shown(name), "\" is not served here"));
}

bool MayUseAdapter(const Tenant& tenant, absl::string_view name) {
  const std::vector<std::string>& allowed = tenant.allowed_adapters;
  return allowed.empty() || std::find(allowed.begin(), allowed.end(), name) != allowed.end();
}

absl::StatusOr<std::string> SelectAdapter(const Tenant& tenant, size_t model,
                                          const v1::GenerateRequest& request) {
  if (!request.has_adapter()) return model == tenant.models.front() ? tenant.adapter : std::string();
  if (request.adapter().empty() || MayUseAdapter(tenant, request.adapter())) return request.adapter();
  return NoAdapter(request.adapter());
}

absl::StatusOr<DrafterSelection> SelectDrafter(const RoutingTable& table, const Tenant& tenant,
                                               const v1::SpeculationOptions& options,
                                               absl::string_view request_id, const DrafterFilter& can_draft) {
  const std::vector<std::string>& policies = tenant.allowed_window_policies;
  if (!options.window_policy().empty() && !policies.empty() &&
      std::find(policies.begin(), policies.end(), options.window_policy()) == policies.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.window_policy: \"", Shown(options.window_policy()),
                     "\" is not allowed for this tenant, expected one of ", absl::StrJoin(policies, ", ")));
  }
  std::optional<size_t> requested;
  std::optional<size_t> partner = tenant.partner;
  if (!options.partner().empty()) {
    TANDEM_ASSIGN_OR_RETURN(partner, FindAllowed(table, tenant, options.partner(), "speculation.partner"));
  }
  if (!options.drafter().empty()) {
    TANDEM_ASSIGN_OR_RETURN(requested, FindAllowed(table, tenant, options.drafter(), "speculation.drafter"));
    if (tenant.policy == v1::DRAFTER_POLICY_OFF) {
      return absl::InvalidArgumentError(absl::StrCat("speculation.drafter: \"", Shown(options.drafter()),
                                                     "\", but speculation is off for this tenant"));
    }
  }
  switch (options.mode()) {
    case v1::SPECULATION_MODE_OFF:
      return DrafterSelection{.reason = "off"};
    case v1::SPECULATION_MODE_UNSPECIFIED:
    case v1::SPECULATION_MODE_ON:
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("speculation.mode: ", static_cast<int>(options.mode()), ", expected 0, 1 or 2"));
  }
  DrafterSelection selection;
  if (requested.has_value()) {
    const Drafter& drafter = table.drafters[*requested];
    selection = drafter.draining ? DrafterSelection{.reason = drafter.absent ? "absent" : "draining"}
                                 : DrafterSelection{.drafter = requested, .reason = "request"};
  } else {
    const DrafterCandidates candidates = NarrowDrafters(table, tenant, request_id, can_draft);
    selection.reason = candidates.reason;
    selection.unfit = candidates.unfit;
    if (candidates.choose) {
      selection.candidates = candidates.drafters;
    } else if (!candidates.drafters.empty()) {
      selection.drafter = candidates.drafters.front();
    }
  }
  if (!selection.drafter.has_value() && selection.candidates.empty() &&
      options.mode() == v1::SPECULATION_MODE_ON) {
    if (absl::Status refused = CheckInsistence(selection, requested.has_value()); !refused.ok())
      return refused;
  }
  if (partner.has_value() && !table.drafters[*partner].draining && selection.reason != "off") {
    selection.partner = partner;
  }
  return selection;
}

}  // namespace tandem::router
