#include "bench/plan/plan_router.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "bench/plan/plan_engine.h"
#include "common/base/hash.h"
#include "router/drafters/choice/live_costs.h"
#include "router/verifiers/verifier_order.h"

namespace tandem::plan {
namespace {

constexpr size_t kTheModel = 0;
// As in the router's verifier pool: one request on its way for so many running ones.
constexpr uint32_t kRunningPerOneOnTheWay = 8;

router::RoutingTable TableOf(const Plan& plan, const Layout& layout) {
  router::RoutingTable table;
  table.models.push_back({.name = "target", .folder = "", .verifiers = {}});
  table.max_concurrent_requests = layout.max_concurrent_requests;
  for (const TenantTraffic& traffic : plan.traffic.tenants) {
    router::Tenant tenant{.name = traffic.name, .models = {kTheModel}};
    tenant.weight = traffic.weight;
    tenant.max_concurrent_requests = traffic.max_concurrent_requests;
    tenant.max_queued_requests = traffic.max_queued_requests;
    tenant.tokens_per_minute = traffic.tokens_per_minute;
    tenant.cache_salt = HashBytes(traffic.name);
    table.tenants.push_back(std::move(tenant));
  }
  return table;
}

std::vector<std::string> EndpointsOf(const Layout& layout) {
  std::vector<std::string> endpoints;
  for (uint32_t i = 0; i < layout.verifiers.count; ++i) endpoints.push_back(absl::StrCat("verifier-", i));
  return endpoints;
}

// The router's places: requests that verifiers run, and requests on their way to a verifier.
uint32_t PlacesOf(const Layout& layout) {
  const uint32_t running = layout.verifiers.max_running;
  return layout.verifiers.count * (running + std::max(running / kRunningPerOneOnTheWay, 1u));
}

}  // namespace

PlanRouter::PlanRouter(const Plan& plan, const Layout& layout, const DrafterPlaces& places,
                       const Clock* clock)
    : plan_(plan),
      layout_(layout),
      clock_(clock),
      table_(TableOf(plan, layout)),
      admission_(clock, router::Admission::kDefaultSparePercent),
      verifiers_({}, EndpointsOf(layout)),
      chooser_({}, {{.name = "target",
                     .vocab_size = PlanEngine::kVocabSize,
                     .vocabulary_fingerprint = kPlanFingerprint}}) {
  for (const DrafterPlaces::Group& group : places.groups) {
    if (layout.choice == DrafterChoice::kPinned && group.name == layout.pinned) pinned_ = drafters_.size();
    drafters_.push_back(group.name);
  }
  for (const DrafterGroup& group : layout.drafters) {
    if (group.count == 0) continue;
    // The time that drafters report.
    chooser_.TellLevelSeconds(group.name, absl::ToDoubleSeconds(group.step.Of(1, 1)));
  }
  admission_.SetPlaces(kTheModel, PlacesOf(layout));
}

absl::StatusOr<router::Admission::Ticket> PlanRouter::Admit(uint32_t tenant,
                                                            router::Admission::OnPlace on_place) {
  return admission_.Admit(table_, tenant, std::move(on_place), kTheModel);
}

PlanRouter::Choice PlanRouter::ChooseDrafter(uint32_t tenant, uint64_t number,
                                             absl::Span<const TokenId> prompt) {
  Choice choice;
  if (layout_.choice == DrafterChoice::kPinned) choice.group = pinned_;
  if (layout_.choice != DrafterChoice::kAuto || drafters_.empty()) return choice;
  choice.prompt = chooser_.Prepare(kTheModel, prompt, table_.tenants[tenant].name);
  choice.decision = chooser_.Decide(kTheModel, choice.prompt, drafters_);
  choice.group = choice.decision.drafter;
  const double draw = static_cast<double>(HashCombine(plan_.traffic.seed, number) >> 11) * 0x1p-53;
  choice.scored = choice.decision.learning || draw < layout_.feedback_share;
  return choice;
}

std::optional<size_t> PlanRouter::ChooseVerifier(uint32_t tenant, absl::Span<const TokenId> prompt,
                                                 absl::Span<const size_t> tried) {
  const absl::Span<const TokenId> leading = prompt.subspan(0, router::kAffinityTokens);
  const std::vector<uint32_t> tokens(leading.begin(), leading.end());
  const std::vector<size_t> order =
      verifiers_.Order(tokens, table_.tenants[tenant].cache_salt, tried, clock_->Now());
  if (order.empty() || std::find(tried.begin(), tried.end(), order.front()) != tried.end()) {
    return std::nullopt;
  }
  verifiers_.OnBegin(order.front());
  return order.front();
}

void PlanRouter::Learn(const Choice& choice, uint32_t kind, const SessionSummary& summary) {
  if (choice.prompt.feature_model == nullptr) return;
  const std::string drafter = choice.group.has_value() ? drafters_[*choice.group] : "";
  router::RequestOutcome outcome;
  outcome.verify = summary.verify_seconds;
  if (summary.drafter == drafter && summary.drafter_lost.empty()) {
    outcome.decode_tokens = summary.decode_tokens;
    outcome.decode_seconds = summary.decode_seconds;
    if (!drafter.empty() && summary.exposed_level_seconds >= 0.0 && summary.hidden_level_seconds >= 0.0) {
      outcome.draft = router::DraftCosts{.exposed_level_seconds = summary.exposed_level_seconds,
                                         .hidden_level_seconds = summary.hidden_level_seconds};
    }
    outcome.accepted = summary.drafter_accepted_tokens;
    outcome.rejections = summary.drafter_rejections;
  }
  chooser_.Learn(kTheModel, drafter, choice.prompt, outcome);
  if (chooser_.FitDue(kTheModel)) chooser_.Fit(kTheModel);
  if (!choice.scored) return;
  // The score that another drafter would give: how often one of a node's children is right.
  for (const std::string& other : drafters_) {
    if (other == drafter) continue;
    const Acceptance* const acceptance = plan_.acceptance->Find(plan_.traffic.kinds[kind], other);
    chooser_.Observe(kTheModel, other, choice.prompt, acceptance->Rate(layout_.window.branching),
                     router::SampleWeight(std::max(summary.output_tokens, 1u)));
  }
}

}  // namespace tandem::plan
