#include "router/serving/preparation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/token.h"
#include "router/drafters/drafter_policy.h"
#include "router/models/tool_choice.h"
#include "router/serving/request.h"
#include "router/tenants/authentication.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {
namespace {

// As many as verifiers take.
constexpr int kMostAlternates = 8;

void FillTarget(const Drafter& drafter, v1::DrafterTarget& target) {
  target.set_name(drafter.name);
  target.set_endpoint(drafter.endpoint);
  target.set_draft_model(drafter.draft_model);
  target.set_trusted(drafter.trusted);
}

// The tools that the constraint of `prepared` was made of.
v1::ChatPrompt ToolsOf(const v1::GenerateRequest& request, const v1::VerifierGenerateRequest& prepared) {
  v1::ChatPrompt tools;
  if (request.has_constraint() || !prepared.has_constraint()) return tools;
  for (const v1::Tool& tool : request.chat().tools()) {
    v1::Tool& kept = *tools.add_tools();
    kept.set_name(tool.name());
    if (tool.has_input()) kept.mutable_input();
  }
  *tools.mutable_tool_choice() = request.chat().tool_choice();
  return tools;
}

}  // namespace

absl::Status Preparation::Receive(const std::optional<Secret>& authorization,
                                  absl::FunctionRef<absl::StatusOr<Request>()> read) {
  TANDEM_ASSIGN_OR_RETURN(const size_t tenant, Authenticate(facts_.routing->tenants(), authorization));
  facts_.tenant = &table().tenants[tenant];
  TANDEM_ASSIGN_OR_RETURN(facts_.asked, read());
  return absl::OkStatus();
}

absl::Status Preparation::Route() {
  TANDEM_RETURN_IF_ERROR(ValidateRequest(*facts_.asked));
  TANDEM_ASSIGN_OR_RETURN(facts_.model, SelectModel(table(), *facts_.tenant, facts_.asked->model()));
  TANDEM_ASSIGN_OR_RETURN(facts_.adapter, SelectAdapter(*facts_.tenant, facts_.model, *facts_.asked));
  facts_.model_name = model().name;
  facts_.request_id = facts_.asked->request_id();
  if (facts_.request_id.empty()) {
    facts_.request_id = absl::StrFormat("%016x%016x", services_.draw(), services_.draw());
  }
  return absl::OkStatus();
}

absl::Status Preparation::Admit(Admission::OnPlace on_place) {
  const Tenant& tenant = *facts_.tenant;
  TANDEM_ASSIGN_OR_RETURN(facts_.selection,
                          SelectDrafter(table(), tenant, facts_.asked->speculation(), facts_.request_id,
                                        services_.CanDraft(facts_.model, tenant)));
  const auto index = static_cast<size_t>(&tenant - table().tenants.data());
  TANDEM_ASSIGN_OR_RETURN(ticket_, services_.admission->Admit(table(), index, std::move(on_place),
                                                              facts_.model, facts_.asked->priority()));
  facts_.queued = ticket_.waits_at_first();
  return absl::OkStatus();
}

absl::Status Preparation::Place(absl::Time deadline) {
  if (services_.clock->Now() >= deadline) {
    return absl::DeadlineExceededError("the call's deadline passed while it waited");
  }
  // Those before it may have used up what there was when it was admitted.
  return services_.admission->CheckQuota(*facts_.tenant);
}

Preparation::Found Preparation::Encode() const {
  Found found;
  found.request = PrepareRequest(*facts_.asked, model(), services_.draw, found.tokenized);
  found.encoded = services_.clock->Now();
  return found;
}

void Preparation::Choose(Found& found) const {
  const v1::VerifierGenerateRequest& request = *found.request;
  found.selection = facts_.selection;
  found.prepared = {.parsed = ParsedOutput::Begin(*facts_.asked, request, model()),
                    .tools = ToolsOf(*facts_.asked, request)};
  ChooseDrafter(found);
  found.chosen = services_.clock->Now();
}

void Preparation::ChooseDrafter(Found& found) const {
  if (found.selection.candidates.empty() && !found.selection.drafter.has_value()) return;
  const std::string& tenant = facts_.tenant->name;
  const auto& ids = found.request->prompt().ids();
  const TokenIds prompt(ids.begin(), ids.end());
  found.prompt = services_.chooser->Prepare(
      facts_.model, prompt, facts_.adapter.empty() ? tenant : absl::StrCat(tenant, "+", facts_.adapter));
  if (found.selection.candidates.empty()) return;
  std::vector<std::string> names;
  for (size_t drafter : found.selection.candidates) names.push_back(table().drafters[drafter].name);
  found.decision = services_.chooser->Decide(facts_.model, found.prompt, names);
  found.selection.reason = found.decision.reason;
  if (found.decision.drafter.has_value()) {
    found.selection.drafter = found.selection.candidates[*found.decision.drafter];
  }
}

void Preparation::Charge(const Found& found) {
  services_.admission->Charge(*facts_.tenant, found.tokenized);
}

absl::Status Preparation::Complete(Found& found) {
  facts_.request = *std::move(found.request);
  facts_.selection = std::move(found.selection);
  facts_.prompt = std::move(found.prompt);
  facts_.decision = std::move(found.decision);
  TANDEM_RETURN_IF_ERROR(ReserveTokens(found.tokenized));
  const Tenant& tenant = *facts_.tenant;
  v1::VerifierGenerateRequest& request = facts_.request;
  request.set_request_id(facts_.request_id);
  request.set_tenant(tenant.name);
  const std::string& salt = facts_.asked->cache_salt();
  request.set_cache_salt(salt.empty() ? tenant.cache_salt : HashCombine(tenant.cache_salt, HashBytes(salt)));
  request.set_adapter(facts_.adapter);
  request.set_text_drafting(tenant.text_drafting);
  v1::SpeculationOptions& speculation = *request.mutable_speculation();
  if (speculation.window_policy().empty()) speculation.set_window_policy(tenant.window_policy);
  SetDrafters();
  // Off means off: the verifier is not to guess by itself either.
  if (facts_.selection.reason == "off") {
    speculation.set_mode(v1::SPECULATION_MODE_OFF);
    request.clear_prediction();
  }
  request.set_policy_state(services_.policies->Find(PolicyKeyOf(facts_)));
  return absl::OkStatus();
}

void Preparation::SetDrafters() {
  const DrafterSelection& selection = facts_.selection;
  v1::VerifierGenerateRequest& request = facts_.request;
  v1::SpeculationOptions& speculation = *request.mutable_speculation();
  speculation.clear_drafter();  // Whatever the client asked for.
  speculation.clear_partner();
  if (!selection.drafter.has_value()) return;
  const Drafter& drafter = table().drafters[*selection.drafter];
  FillTarget(drafter, *request.mutable_drafter());
  speculation.set_drafter(drafter.name);
  AddAlternates(*selection.drafter);
  if (!selection.partner.has_value() || selection.partner == selection.drafter) return;
  const Drafter& partner = table().drafters[*selection.partner];
  FillTarget(partner, *request.mutable_partner());
  speculation.set_partner(partner.name);
}

// Those elsewhere come first, since what takes a process away takes all its draft models. A drafter that the
// request itself names is not replaced.
void Preparation::AddAlternates(size_t drafter) {
  if (facts_.selection.reason == "request") return;
  const std::vector<Drafter>& drafters = table().drafters;
  const DrafterFilter can_draft = services_.CanDraft(facts_.model, *facts_.tenant);
  for (const bool elsewhere : {true, false}) {
    for (size_t other : facts_.tenant->allowed_drafters) {
      if (other == drafter || drafters[other].draining || !can_draft(drafters[other])) continue;
      if ((drafters[other].endpoint != drafters[drafter].endpoint) != elsewhere) continue;
      if (facts_.request.alternates_size() >= kMostAlternates) return;
      FillTarget(drafters[other], *facts_.request.add_alternates());
    }
  }
}

PolicyKey Preparation::PolicyKeyOf(const GenerationFacts& facts) {
  const v1::VerifierGenerateRequest& request = facts.request;
  return {
      .tenant = facts.tenant->name,
      .model = facts.adapter.empty() ? request.model() : absl::StrCat(request.model(), "+", facts.adapter),
      .drafter = request.speculation().drafter(),
      .window_policy = request.speculation().window_policy()};
}

absl::Status Preparation::ReserveTokens(uint64_t tokenized) {
  const auto prompt = static_cast<uint64_t>(facts_.request.prompt().ids_size());
  // What the client has already is computed like a prompt; it counts for max_tokens.
  const auto emitted = static_cast<uint64_t>(facts_.request.emitted().ids_size());
  const auto& stopping = facts_.request.stopping();
  const auto context = static_cast<uint64_t>(model().context_length);
  const uint64_t most = stopping.has_max_tokens() ? prompt + stopping.max_tokens() : context;
  const uint64_t least = prompt + emitted;
  TANDEM_ASSIGN_OR_RETURN(reserved_tokens_,
                          services_.admission->Reserve(
                              *facts_.tenant, std::clamp(most, least, std::max(context, least)), tokenized));
  used_tokens_ = prompt + emitted;
  return absl::OkStatus();
}

void Preparation::GiveUpPlace(uint32_t num_sent) {
  if (reserved_tokens_.has_value()) {
    services_.admission->Settle(*facts_.tenant, *reserved_tokens_, used_tokens_ + num_sent);
  }
  ticket_.GiveBackPlace();
}

}  // namespace tandem::router
