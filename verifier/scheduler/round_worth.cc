// What a Scheduler thinks is worth drafting, verifying and waiting for: windows, trees over the whole batch,
// misses, and whether drafting pays at all (DESIGN section 4, law 6).

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/speculation/draft_wait.h"
#include "common/speculation/node_choice.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<WindowPolicy>> Scheduler::MakePolicy(const SessionRequest& request,
                                                                    absl::Span<const TokenId> output) const {
  TokenIds tokens = request.prompt;
  tokens.insert(tokens.end(), output.begin(), output.end());
  return MakeWindowPolicy(request.window_policy.empty() ? window_policy_ : request.window_policy,
                          policy_options_,
                          {.tokens = tokens, .seed = request.sampling.seed, .learned = request.policy_state});
}

absl::Status Scheduler::SetWindowPolicy(absl::string_view name, const WindowPolicyOptions& options) {
  TANDEM_RETURN_IF_ERROR(MakeWindowPolicy(name, options).status());
  window_policy_ = std::string(name);
  policy_options_ = options;
  const auto change = [&](Session& session) {
    if (!session.request().window_policy.empty()) return;
    const absl::Span<const TokenId> output = session.tokens().subspan(session.request().prompt.size());
    session.set_policy(*MakePolicy(session.request(), output));
  };
  for (const std::unique_ptr<Session>& session : waiting_) change(*session);
  for (const auto& [id, session] : running_) change(*session);
  return absl::OkStatus();
}

uint32_t Scheduler::NumDecoding() const {
  uint32_t count = 0;
  for (const auto& [id, session] : running_) count += session->prefilled() ? 1 : 0;
  return std::max<uint32_t>(count, 1);
}

uint32_t Scheduler::MeanContext() const {
  if (running_.empty()) return 0;
  uint64_t sum = 0;
  for (const auto& [id, session] : running_) sum += session->tokens().size();
  return static_cast<uint32_t>(sum / running_.size());
}

RoundCosts Scheduler::CostsOf(const Session& session) const {
  const DraftPeer* const drafter = session.peer(DraftRole::kDrafter);
  RoundCosts costs{.round_time = &round_time_,
                   .batch = NumDecoding(),
                   .context = step_context_,
                   .draft_seconds_per_level = drafter == nullptr ? 0.0 : drafter->seconds_per_level(),
                   .limits = session.limits()};
  if (session.policy().heeds_worth()) costs.nodes_per_level = session.verified_per_level();
  if (drafter == nullptr) return costs;
  const DrafterRecord* const record = drafter->record();
  if (costs.limits.lookahead > 0) costs.hidden_draft_seconds_per_level = record->times.level_seconds();
  costs.drafter_acceptance = &record->acceptance;
  costs.is_control = IsPlainStep();
  costs.drafting_pays = record->payoff.drafting() && !costs.is_control;
  costs.ahead_pays = record->ahead_payoff.drafting();
  return costs;
}

// Rows go to the sessions that use them best. A policy that verifies its whole window does so only while its
// request is alone: clients choose policies, and rows taken first would cost all others.
void Scheduler::ChooseTrees(absl::Span<Session* const> sessions, uint32_t max_nodes, uint32_t prompt_rows) {
  std::vector<Session*> by_worth;
  std::vector<ChoiceSession> candidates;
  ChoiceCosts costs{.round_time = &round_time_,
                    .context = MeanContext(),
                    .fixed_rows = static_cast<uint32_t>(sessions.size()),
                    .prompt_rows = prompt_rows,
                    .fixed_tokens = static_cast<double>(sessions.size())};
  if (plain_step_) max_nodes = 0;
  uint32_t left = max_nodes;
  const bool is_shared = running_.size() > 1;
  for (Session* session : sessions) {
    const bool heeds_worth = is_shared || session->policy().heeds_worth();
    session->PrepareRound(heeds_worth ? max_nodes : left);
    if (heeds_worth) {
      if (session->tree().empty()) continue;
      by_worth.push_back(session);
      candidates.push_back(session->Choice());
      continue;
    }
    left -= session->tree().size();
    costs.fixed_rows += session->tree().size();
    for (const RoundNode& node : session->tree()) costs.fixed_tokens += node.path_score;
  }
  if (by_worth.empty()) return;
  costs.most_nodes = left;
  const NodeChoice choice = ChooseNodes(candidates, costs);
  for (size_t i = 0; i < by_worth.size(); ++i) by_worth[i]->KeepNodes(choice.nodes[i]);
}

namespace {

// The level at which to stop waiting for more: as many as make the most tokens per second of wait and step.
uint32_t LevelsToAwait(const DraftPeer& drafter, double step_seconds) {
  uint32_t best = 1;
  double best_rate = 0.0;
  for (uint32_t depth = 1; depth <= drafter.budget().depth; ++depth) {
    const double rate =
        (1.0 + drafter.ExpectedAccepted(depth)) / (drafter.record()->times.SecondsTo(depth) + step_seconds);
    if (rate > best_rate) {
      best_rate = rate;
      best = depth;
    }
  }
  return best;
}

}  // namespace

void Scheduler::DecideWaits(absl::Time now) {
  if (IsPlainStep()) return;
  std::vector<Session*> lacking;
  double ready_tokens = 0.0;
  for (const auto& [id, session] : running_) {
    if (session->LacksDrafts()) {
      lacking.push_back(session.get());
    } else if (session->ReadyForRound(now)) {
      const DraftPeer* const drafter = session->open_peer(DraftRole::kDrafter);
      ready_tokens += 1.0 + (drafter == nullptr ? 0.0 : drafter->ExpectedAccepted(drafter->budget().depth));
    }
  }
  for (Session* session : lacking) {
    const DraftPeer& drafter = *session->peer(DraftRole::kDrafter);
    const DraftTimes& times = drafter.record()->times;
    const RoundCosts costs = CostsOf(*session);
    const double plain_seconds = round_time_.Seconds(costs.batch, costs.context);
    const uint32_t depth = LevelsToAwait(drafter, plain_seconds);
    DraftWait wait{.expected_seconds = times.SecondsTo(depth),
                   .plain_seconds = plain_seconds,
                   .drafted_seconds =
                       round_time_.Seconds(costs.batch + session->limits().NodesFor(depth), costs.context),
                   .first_level = drafter.FirstLevelAcceptance(),
                   .expected_accepted = drafter.ExpectedAccepted(drafter.budget().depth),
                   .drafted_ahead = session->limits().lookahead > 0};
    // A guess that the verifier makes by itself is there at once.
    const Session::LocalGuess local = session->GuessLocally();
    const double local_seconds = round_time_.Seconds(costs.batch + local.nodes, costs.context);
    if (local.nodes > 0 && (1.0 + local.expected_accepted) * (wait.expected_seconds + wait.drafted_seconds) >=
                               (1.0 + wait.expected_accepted) * local_seconds) {
      continue;
    }
    const double alone = WorthwhileWait(wait);
    // A step is held for all sessions that lack drafts together, so each accounts for its share of the
    // others' loss. A step is never held for a drafter whose times are unknown.
    wait.others_tokens_per_second = ready_tokens / wait.drafted_seconds / static_cast<double>(lacking.size());
    const double held = times.knows_first_growth() ? WorthwhileWait(wait) : 0.0;
    session->WaitFor(now, std::min(options_.max_draft_wait, absl::Seconds(alone)),
                     std::min(options_.max_draft_wait, absl::Seconds(held)), depth);
  }
}

bool Scheduler::IsHeld(absl::Time now) const {
  return std::any_of(running_.begin(), running_.end(),
                     [now](const auto& entry) { return entry.second->hold_until(now) > now; });
}

bool Scheduler::IsPlainStep() const {
  return control_.plain() && std::all_of(running_.begin(), running_.end(), [](const auto& entry) {
           return !entry.second->request().speculate || entry.second->policy().heeds_worth();
         });
}

void Scheduler::CountYield(Session& session, const RoundReport& report, std::optional<double> seconds) {
  const DraftPeer* const drafter = session.peer(DraftRole::kDrafter);
  // What the same step would have taken without trees when the engine was measured.
  const double plain_seconds =
      round_time_.Uncorrected(static_cast<uint32_t>(rounds_.size()) + num_prefill_rows_, step_context_);
  // A step that is mostly prompts says little of drafting, and makes every token of a round look cheap.
  const bool says_little = num_prefill_rows_ > rounds_.size() || plain_seconds <= 0.0;
  if (session.request().speculate && seconds.has_value() && !says_little) {
    control_.Add(drafter == nullptr ? absl::string_view() : drafter->binding().name, report.committed,
                 *seconds / plain_seconds);
  }
  if (plain_step_) return;
  if (drafter == nullptr || (!drafter->drafting() && !drafter->suspended()) ||
      !session.policy().heeds_worth() || !seconds.has_value() || *seconds < 0.0)
    return;
  DrafterRecord* const record = drafter->record();
  if (session.round_was_drafted() != record->payoff.drafting()) return;
  if (says_little) return;
  const bool first_of_step = record->yield.cost <= 0.0;
  record->yield.opening =
      session.round_was_drafted() && !drafter->grown() && (first_of_step || record->yield.opening);
  record->yield.drafted = session.round_was_drafted();
  record->yield.tokens += report.committed;
  record->yield.cost += *seconds / plain_seconds;
  // Expected values from scores vary less than outcomes.
  if (!session.round_was_drafted() || session.round_was_ahead() != record->ahead_payoff.drafting()) return;
  record->ahead_yield.drafted = session.round_was_ahead();
  record->ahead_yield.tokens += 1.0 + report.expected_accepted;
  record->ahead_yield.cost += *seconds / plain_seconds;
}

void Scheduler::ObserveYields() {
  const bool counts = plain_step_ == control_.plain();
  if (const std::optional<ControlGroup::Estimate> gain =
          control_.EndStep(static_cast<uint32_t>(rounds_.size()), counts)) {
    listener_->OnSpeedup(*gain);
  }
  for (Session* session : rounds_) {
    const DraftPeer* const drafter = session->peer(DraftRole::kDrafter);
    if (drafter == nullptr || drafter->record()->yield.cost <= 0.0) continue;
    DrafterRecord* const record = drafter->record();
    record->payoff.Observe(std::exchange(record->yield, {}));
    record->ahead_payoff.Observe(std::exchange(record->ahead_yield, {}));
  }
}

}  // namespace tandem
