// The accounts of a Session's round by origin: reports, the request's summary, and learning from the round.
// Everything that decides about a drafter learns only from its own nodes.

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "common/base/node_index.h"
#include "verifier/session/drafter_record.h"
#include "verifier/session/session.h"

namespace tandem {
namespace {

void CountAt(std::vector<uint32_t>& histogram, size_t index) {
  if (histogram.size() <= index) histogram.resize(index + 1);
  ++histogram[index];
}

}  // namespace

DraftTotals TotalsBy(const SessionSummary& summary, SourceKind source) {
  DraftTotals totals;
  for (const OriginSummary& entry : summary.by_origin) {
    if (KindOf(entry.origin) != source) continue;
    totals.draft_tokens += entry.draft_tokens;
    totals.accepted_tokens += entry.accepted_tokens;
  }
  return totals;
}

// Every verified child of a node on the walk was compared with the target's choice there; no other node was.
void Session::ObserveScores(DraftOrigin origin, ScoreCalibration* calibration,
                            std::vector<JudgedNode>* judged) {
  constexpr size_t kUsualNodes = 32;
  absl::InlinedVector<bool, kUsualNodes> is_accepted(tree_.size(), false);
  // After the root and after every node: whether the target's choice is known.
  absl::InlinedVector<bool, kUsualNodes> is_chosen_after(tree_.size() + 1, false);
  is_chosen_after[0] = true;
  for (const uint32_t index : accepted_) is_accepted[index] = is_chosen_after[PlaceAfterRoot(index)] = true;
  if (!walked_to_the_end_) {
    is_chosen_after[PlaceAfterRoot(accepted_.empty() ? kRootNode : accepted_.back())] = false;
  }
  const float temperature = request_.sampling.temperature;
  absl::InlinedVector<uint32_t, kUsualNodes> depths;
  judged->reserve(tree_.size());
  // Computes all of them before the first observation, because that makes the calibration fit again.
  for (size_t i = 0; i < tree_.size(); ++i) {
    const RoundNode& node = tree_[i];
    if (!node.guesses.IsBy(origin)) continue;
    if (!is_chosen_after[PlaceAfterRoot(node.parent)]) continue;
    const float score = node.guesses.by(origin);
    judged->push_back({.score = score,
                       .calibrated = calibration->Calibrated(temperature, node.depth, score),
                       .accepted = is_accepted[i]});
    depths.push_back(node.depth);
  }
  for (size_t i = 0; i < judged->size(); ++i) {
    calibration->Observe(temperature, depths[i], (*judged)[i].score, (*judged)[i].accepted);
  }
}

std::vector<RoundNode> Session::TraceMasked() const {
  std::vector<RoundNode> masked;
  for (const ForbiddenNode& forbidden : masked_) {
    if (masked.size() == kMaxTracedMasked) break;
    std::optional<uint32_t> parent = kRootNode;
    for (size_t i = 0; parent.has_value() && i < forbidden.above.size(); ++i) {
      parent = FindChild(tree_.nodes(), *parent, forbidden.above[i]);
    }
    if (!parent.has_value()) continue;  // It was not verified.
    masked.push_back(forbidden.node);
    masked.back().parent = *parent;
  }
  return masked;
}

std::optional<DraftSupply> Session::SupplyOfRound() const {
  const DraftPeer* const drafter = peer(DraftRole::kDrafter);
  if (drafter == nullptr) return std::nullopt;
  const bool drafted = std::any_of(tree_.begin(), tree_.end(), [](const RoundNode& node) {
    return node.guesses.IsBy(DraftOrigin::kDrafter);
  });
  if (drafted) return DraftSupply::kDrafted;
  if (!drafter->drafting() && !drafter->suspended()) return DraftSupply::kLost;
  if (!drafts_wanted_ || drafts_offered_) return DraftSupply::kUnwanted;
  return drafter->answered() ? DraftSupply::kLate : DraftSupply::kOpening;
}

std::array<OriginOutcome, kNumDraftOrigins> Session::OutcomesOfRound() const {
  std::array<OriginOutcome, kNumDraftOrigins> outcomes;
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    outcomes[i] = OutcomeOf(static_cast<DraftOrigin>(i), tree_, accepted_, !finished_);
  }
  return outcomes;
}

void Session::FillShares(RoundReport& report,
                         const std::array<OriginOutcome, kNumDraftOrigins>& outcomes) const {
  report.drafters = round_drafters_;
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    report.shares[i] = {.depth = outcomes[i].depth,
                        .nodes = outcomes[i].credited,
                        .accepted = outcomes[i].credited_accepted,
                        .declined = offered_[i] - outcomes[i].credited};
    report.declined += report.shares[i].declined;
  }
  for (const RoundNode& node : tree_) {
    const double expected = double{node.path_score};
    report.expected_accepted += expected;
    report.shares[static_cast<size_t>(node.guesses.credited())].expected_accepted += expected;
  }
  report.accepted_by.reserve(accepted_.size());
  for (const uint32_t index : accepted_) report.accepted_by.push_back(tree_[index].guesses.credited());
  report.wait_seconds = round_wait_seconds_;
  report.shares[static_cast<size_t>(DraftOrigin::kDrafter)].wait_seconds = round_wait_seconds_;
  for (const OwnSource& own : own_sources_) {
    report.shares[static_cast<size_t>(own.origin())].wait_seconds = own.seconds();
  }
}

OriginSummary& Session::SummaryOf(DraftOrigin origin, const std::string& drafter) {
  const auto find = [&](absl::string_view name) {
    return std::find_if(
        summary_.by_origin.begin(), summary_.by_origin.end(),
        [&](const OriginSummary& entry) { return entry.origin == origin && entry.drafter == name; });
  };
  if (const auto found = find(drafter); found != summary_.by_origin.end()) return *found;
  std::string name = drafter;
  if (summary_.by_origin.size() >= kMostOriginSummaries) {
    name = kOtherDrafters;
    if (const auto found = find(name); found != summary_.by_origin.end()) return *found;
  }
  return summary_.by_origin.emplace_back(OriginSummary{.origin = origin, .drafter = std::move(name)});
}

void Session::CountRound(const RoundReport& report,
                         const std::array<OriginOutcome, kNumDraftOrigins>& outcomes) {
  ++summary_.rounds;
  CountAt(summary_.window_histogram, report.depth);
  if (report.kind != RoundKind::kUndrafted) {
    ++summary_.drafted_rounds;
    ++(report.kind == RoundKind::kHit ? summary_.hits : summary_.misses);
    summary_.draft_tokens += report.nodes;
    summary_.accepted_tokens += report.accepted;
    for (uint32_t i = 0; i < report.accepted; ++i) CountAt(summary_.accepted_per_position, i);
  }
  uint32_t num_origins = 0;
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    const OriginShare& share = report.shares[i];
    if (share.empty()) continue;
    const auto origin = static_cast<DraftOrigin>(i);
    OriginSummary& entry = SummaryOf(origin, report.drafters.NameOf(origin));
    entry.wait_seconds += share.wait_seconds;
    if (share.nodes == 0) continue;
    ++num_origins;
    ++entry.rounds;
    entry.draft_tokens += share.nodes;
    entry.accepted_tokens += share.accepted;
    entry.rejections += outcomes[i].rejected ? 1 : 0;
    for (size_t at = 0; at < report.accepted_by.size(); ++at) {
      if (report.accepted_by[at] == origin) CountAt(entry.accepted_per_position, at);
    }
  }
  summary_.merged_rounds += num_origins > 1 ? 1 : 0;
}

void Session::SummariseCosts(const RoundCosts& costs) {
  summary_.policy_state = policy_->ExportState();
  for (uint32_t window = 0; window <= costs.limits.max_depth; ++window) {
    summary_.verify_seconds.push_back(costs.VerifySeconds(window));
  }
  if (summary_.drafter.empty()) return;
  summary_.exposed_level_seconds = costs.draft_seconds_per_level;
  summary_.hidden_level_seconds = costs.hidden_draft_seconds_per_level;
}

void Session::ObserveRound(RoundReport& report, const TokenIds& committed,
                           const std::array<OriginOutcome, kNumDraftOrigins>& outcomes) {
  ObservePartner(outcomes[static_cast<size_t>(DraftOrigin::kPartner)]);
  for (const OwnSource& own : own_sources_) {
    std::vector<JudgedNode> judged;
    ObserveScores(own.origin(), own.calibration(), &judged);
  }
  ObserveDrafter(report, committed, outcomes[static_cast<size_t>(DraftOrigin::kDrafter)]);
}

void Session::ObservePartner(const OriginOutcome& drafted) {
  if (!WasInRound(DraftRole::kPartner)) return;
  DraftPeer& partner = *peer(DraftRole::kPartner);
  std::vector<JudgedNode> judged;
  ObserveScores(DraftOrigin::kPartner, &partner.record()->calibration, &judged);
  partner.ObserveRound({.depth = drafted.depth, .accepted = drafted.accepted, .rejected = drafted.rejected});
  if (drafted.guessed > 0) partner.ObserveAdded(drafted.credited_accepted);
}

void Session::ObserveDrafter(RoundReport& report, const TokenIds& committed, const OriginOutcome& drafted) {
  // The round's drafter may have gone during the pass.
  if (!WasInRound(DraftRole::kDrafter)) return;
  DraftPeer& drafter = *peer(DraftRole::kDrafter);
  if (!drafter.drafting() && !drafter.suspended()) return;
  // In the drafter's account, a round without its own nodes is undrafted, whichever other source drafted.
  const OriginShare& share = report.shares[static_cast<size_t>(DraftOrigin::kDrafter)];
  const RoundOutcome outcome{.depth = drafted.depth,
                             .accepted = drafted.accepted,
                             .rejected = drafted.rejected,
                             .declined = drafted.guessed == 0 && share.declined > 0,
                             .wait_seconds = report.wait_seconds,
                             .committed = committed};
  summary_.drafter_accepted_tokens += drafted.accepted;
  summary_.drafter_rejections += drafted.rejected ? 1 : 0;
  ObserveScores(DraftOrigin::kDrafter, &drafter.record()->calibration, &report.judged);
  drafter.ObserveRound(outcome);
  policy_->Observe(outcome);
  if (drafter.budget().depth > 0) drafter.ObserveWait(report.wait_seconds, outcome.depth);
}

}  // namespace tandem
