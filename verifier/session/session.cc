#include "verifier/session/session.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "verifier/session/drafter_record.h"

namespace tandem {
namespace {

// A prompt whose log probabilities are wanted is computed as a whole, so it shares no blocks.
PrefixSpace SpaceOf(const SessionRequest& request, SessionId id) {
  return {request.num_prompt_logprobs < 0 ? request.cache_salt : HashCombine(request.cache_salt, ~id),
          request.adapter == nullptr ? kNoAdapter : request.adapter->id};
}

// After so many rounds that waited for nothing, rounds no longer wait until growth arrives again.
constexpr uint32_t kWaitsInVain = 2;
// For how many past commits growth still measures the draft time.
constexpr size_t kAwaitedCommits = 16;
// After this many consecutive rounds with nothing to draft, the session is suspended at the drafter. It is
// more than a probe of plain decoding takes (DraftPayoff); otherwise every session would have to be reopened
// after a probe.
constexpr uint32_t kRoundsToSuspension = 16;

}  // namespace

Session::Session(SessionId id, SessionRequest request, std::unique_ptr<WindowPolicy> policy,
                 const WindowLimits& limits, DrafterRecord* record, BlockPool* pool, int32_t vocab_size)
    : id_(id),
      request_(std::move(request)),
      limits_(limits),
      policy_(std::move(policy)),
      record_(record),
      vocab_size_(vocab_size),
      adapter_(request_.adapter == nullptr ? kNoAdapter : request_.adapter->id),
      sampler_(request_.sampling, vocab_size, request_.prompt),
      kv_(pool, SpaceOf(request_, id)),
      mirror_(vocab_size),
      draft_seconds_per_level_(kDraftSecondsHistory),
      verified_per_level_(kBreadthHistory) {
  // A prompt's last rows and a first round that takes blocks for its tree can be in one step.
  kv_.ExpectLength(static_cast<uint32_t>(request_.prompt.size()) + request_.max_tokens);
  kv_.Append(request_.prompt);
  kv_.Append(request_.emitted);
  for (TokenId token : request_.emitted) sampler_.Append(token);
  prefix_hash_ = ExtendPrefixHash(ExtendPrefixHash(kEmptyPrefixHash, request_.prompt), request_.emitted);
  summary_.prompt_tokens = static_cast<uint32_t>(request_.prompt.size());
  summary_.output_tokens = static_cast<uint32_t>(request_.emitted.size());
  summary_.constrained = request_.constraint != nullptr;
  if (request_.drafter.has_value()) summary_.drafter = request_.drafter->name;
}

absl::Status Session::Start(uint32_t blocks_to_spare) {
  kv_.Resume();
  if (absl::Status reserved = kv_.Reserve(static_cast<uint32_t>(kv_.tokens().size()), blocks_to_spare);
      !reserved.ok()) {
    kv_.Suspend();
    return reserved;
  }
  ReadLocally();
  planned_ = kv_.num_computed();
  if (summary_.preemptions == 0) {
    summary_.cached_prompt_tokens = std::min(planned_, summary_.prompt_tokens);
  }
  return absl::OkStatus();
}

void Session::Preempt() {
  assert(!drafting_ && !finished_);
  kv_.Suspend();
  planned_ = 0;
  last_round_.reset();
  draft_suspended_ = false;
  ++summary_.preemptions;
}

uint32_t Session::PlanPrefill(uint32_t max_rows, uint32_t max_logit_rows, std::vector<StepRow>& rows) {
  const auto root = static_cast<uint32_t>(kv_.tokens().size()) - 1;
  uint32_t end = std::min(root, planned_ + max_rows);
  if (wants_prompt_logits()) end = PlanPromptLogits(static_cast<uint32_t>(rows.size()), max_logit_rows, end);
  const uint32_t count = end - planned_;
  for (; planned_ < end; ++planned_) {
    rows.push_back(
        {.token = kv_.tokens()[planned_], .context = kv_.CommittedRow(planned_), .adapter = adapter_});
  }
  if (count > 0) ReadLocally();
  return count;
}

uint32_t Session::OutputLength() const {
  return static_cast<uint32_t>(kv_.tokens().size() - request_.prompt.size());
}

uint32_t Session::DepthWanted(const RoundCosts& costs) {
  // The last token of the output needs no draft: it is the bonus token of the round that verifies the one
  // before.
  const uint32_t remaining = request_.max_tokens - OutputLength();
  return std::min({policy_->NextDepth(costs), limits_.max_depth, remaining - 1});
}

OpenSession Session::StartDraft(uint64_t vocabulary_fingerprint, const RoundCosts& costs) {
  drafting_ = true;
  draft_opened_ = false;
  draft_grown_ = false;
  draft_suspended_ = false;
  rounds_without_budget_ = 0;
  draft_retry_at_.reset();
  drafts_pay_ = costs.drafting_pays;
  ahead_pays_ = costs.ahead_pays;
  last_round_.reset();
  budget_ = limits_.BudgetFor(DepthWanted(costs), costs.batch, costs.ahead_pays);
  return MakeOpen(mirror_.Open(commit_no_, prefix_hash_, samples_drafts()), request_.drafter->draft_model,
                  vocabulary_fingerprint, budget_);
}

OpenSession Session::MakeOpen(uint32_t epoch, const std::string& draft_model, uint64_t vocabulary_fingerprint,
                              const DraftBudget& budget) const {
  const absl::Span<const TokenId> tokens = kv_.tokens();
  return {.epoch = epoch,
          .draft_model = draft_model,
          .vocabulary_fingerprint = vocabulary_fingerprint,
          .commit_no = commit_no_,
          .tokens = TokenIds(tokens.begin(), tokens.end()),
          .prefix_hash = prefix_hash_,
          .sampling = request_.sampling,
          .prompt_length = static_cast<uint32_t>(request_.prompt.size()),
          .cache_salt = DraftSalt(request_),
          .budget = budget,
          .sampled_drafts = samples_drafts(),
          .predict_acceptance = policy_->stop_below() > 0.0,
          .text_drafting = request_.text_drafting,
          .constraint = request_.wire_constraint};
}

Commit Session::MakeCommit(DraftMirror& mirror, const TokenIds& tokens) const {
  const std::optional<NodeId> new_root = mirror.Commit(tokens, commit_no_, prefix_hash_);
  return {.epoch = mirror.epoch(),
          .commit_no = commit_no_,
          .tokens = tokens,
          .new_root = new_root,
          .committed_len = static_cast<uint32_t>(kv_.tokens().size()),
          .prefix_hash = prefix_hash_,
          .budget = budget_};
}

bool Session::WantsDrafts(const RoundCosts& costs) {
  return policy_->NextDepth(costs) > 0;
}

void Session::SuspendDraft() {
  drafting_ = false;
  draft_opened_ = false;
  draft_suspended_ = true;
  budget_ = DraftBudget{};
  draft_retry_at_.reset();
  awaited_commits_.clear();
  rounds_without_budget_ = 0;
}

void Session::StopDraft(absl::string_view reason, bool for_good) {
  draft_suspended_ = false;
  drafting_ = false;
  draft_opened_ = false;
  draft_refused_ = draft_refused_ || for_good;
  budget_ = DraftBudget{};
  draft_retry_at_.reset();
  wait_until_ = absl::InfinitePast();
  hold_until_ = absl::InfinitePast();
  awaited_commits_.clear();
  summary_.drafter_lost = std::string(reason);
}

bool Session::Holds(const DrafterRecord* record) const {
  return record == record_ || record == round_record_ || record == round_partner_record_ ||
         (standby_ != nullptr && record == standby_->record) ||
         (partner_ != nullptr && record == partner_->record);
}

void Session::PostponeDraft(absl::Time now, absl::Duration first, absl::Duration longest) {
  draft_retry_delay_ =
      draft_retry_delay_ == absl::ZeroDuration() ? first : std::min(2 * draft_retry_delay_, longest);
  draft_retry_at_ = now + draft_retry_delay_;
}

void Session::OnDraftOpened(const SessionOpened& opened) {
  if (!drafting_ || opened.epoch != mirror_.epoch()) return;
  mirror_.OnOpened(opened.predicts_acceptance);
  draft_opened_ = true;
  // Not from the time of the request, because a connection that is being retried has no peer yet.
  summary_.drafter_lost.clear();
}

DraftMirror::GrowReport Session::OnGrow(const Grow& grow, absl::Time received) {
  if (request_.trace_rounds && growth_trace_.size() < kMaxTracedGrowth) {
    growth_trace_.push_back({.received = received,
                             .nodes = static_cast<uint32_t>(grow.tokens.size()),
                             .step_seconds = grow.step_seconds});
  }
  // Until a round has measured the wait, the drafter's own figure counts; it may be anything.
  if (draft_seconds_per_level_.empty() && grow.step_seconds > 0.0f && grow.step_seconds < 1.0f) {
    draft_seconds_per_level_.Add(grow.step_seconds);
  }
  DraftMirror::GrowReport report = mirror_.OnGrow(grow);
  const bool understood =
      report.result == DraftMirror::GrowResult::kAccepted || report.result == DraftMirror::GrowResult::kStale;
  if (understood && grow.epoch == mirror_.epoch()) {
    record_->times.ObserveLevel(grow.step_seconds);
    while (!awaited_commits_.empty() && awaited_commits_.front().first <= grow.seen_commit) {
      if (awaited_commits_.front().first == grow.seen_commit) {
        record_->times.ObserveFirstGrowth(absl::ToDoubleSeconds(received - awaited_commits_.front().second));
      }
      awaited_commits_.pop_front();
    }
  }
  if (report.added > 0) {
    draft_grown_ = true;
    resyncs_in_a_row_ = 0;
    rebinds_in_a_row_ = 0;
    waits_in_vain_ = 0;
    draft_retry_delay_ = absl::ZeroDuration();
  }
  return report;
}

bool Session::LacksDrafts() const {
  return drafting_ && draft_opened_ && prefilled() && !finished_ && budget_.depth > 0 &&
         mirror_.tree().empty() && !mirror_.exhausted() && waits_in_vain_ < kWaitsInVain &&
         (partner_ == nullptr || partner_->mirror.tree().empty()) && !policy_->probing();
}

void Session::WaitFor(absl::Time now, absl::Duration alone, absl::Duration held, uint32_t depth) {
  wait_since_ = now;
  wait_until_ = now + alone;
  hold_until_ = now + std::min(alone, held);
  awaited_depth_ = depth;
}

bool Session::ReadyForRound(absl::Time now) const {
  if (!prefilled() || finished_) return false;
  // A clock that was set back must not make the wait any longer.
  if (!drafting_ || budget_.depth == 0 || now >= wait_until_ || now < wait_since_) return true;
  if (partner_ != nullptr && partner_->mirror.depth() >= awaited_depth_) return true;
  // Of an EAGLE-2 tree only the last nodes say which are the best.
  if (budget_.shape == TreeShape::kEagle2) return mirror_.exhausted();
  if (policy_->stop_below() > 0.0 && mirror_.StopDepth(policy_->stop_below()).has_value()) return true;
  return mirror_.exhausted() || mirror_.tree().size() >= budget_.nodes || mirror_.depth() >= awaited_depth_;
}

double Session::ExpectedAccepted(uint32_t depth) const {
  return acceptance_.ExpectedAccepted(depth, record_ == nullptr ? nullptr : &record_->acceptance);
}

double Session::FirstLevelAcceptance() const {
  return acceptance_.Levels(record_ == nullptr ? nullptr : &record_->acceptance)[0];
}

bool Session::MergesOrigins() const {
  return policy_->heeds_worth() && !samples_drafts();
}

void Session::PrepareRound(uint32_t max_nodes) {
  guesses_.clear();
  offered_ = {};
  round_record_ = record_;
  round_drafters_ = {.drafter = request_.drafter.has_value() ? request_.drafter->name : std::string()};
  // An output's last token has no use for drafts.
  drafts_wanted_ = drafting_ && budget_.depth > 0 && OutputLength() + 1 < request_.max_tokens;
  drafts_offered_ = drafts_wanted_ && !mirror_.tree().empty();
  std::vector<TreeNode> drafted;
  num_masked_ = 0;
  masked_.clear();
  if (drafting_ && budget_.depth > 0) {
    drafted = SelectDrafted(mirror_, *record_, max_nodes);
    DropForbidden(DraftOrigin::kDrafter, &drafted);
  }
  round_partner_record_ = partner_ == nullptr ? nullptr : partner_->record;
  if (partner_ != nullptr) round_drafters_.partner = partner_->binding.name;
  if (samples_drafts() && !drafted.empty()) {
    // Draws use the drafter's ids.
    selected_ = std::move(drafted);
    for (const TreeNode& node : selected_) guesses_.push_back({.scores = {node.score}});
  } else {
    MergedTree tree;
    tree.Add(DraftOrigin::kDrafter, drafted);
    if (partner_ != nullptr && drafts_wanted_ && (drafted.empty() || MergesOrigins())) {
      std::vector<TreeNode> along = SelectDrafted(partner_->mirror, *partner_->record, max_nodes);
      DropForbidden(DraftOrigin::kPartner, &along);
      tree.Add(DraftOrigin::kPartner, along);
      // Later sources only replace a drafter that has sent nothing.
      drafted.insert(drafted.end(), along.begin(), along.end());
    }
    if (drafted.empty() || MergesOrigins()) {
      const float least = MergesOrigins() ? kLeastMergedScore : kLeastLocalScore;
      AddOwnNodes(least, &tree);
    }
    MergedTree::Selection selection = std::move(tree).Take(std::min(limits_.max_nodes, max_nodes));
    selected_ = std::move(selection.nodes);
    guesses_ = std::move(selection.guesses);
  }
  for (const Guesses& guesses : guesses_) ++offered_[static_cast<size_t>(guesses.credited())];
}

std::vector<TreeNode> Session::SelectDrafted(const DraftMirror& mirror, DrafterRecord& record,
                                             uint32_t max_nodes) const {
  const float temperature = request_.sampling.temperature;
  const auto worth = [&](const TreeNode& node) {
    return record.calibration.Calibrated(temperature, node.depth, node.score);
  };
  // What was drafted ahead can be worth more than what the window has room for.
  const bool by_worth = policy_->heeds_worth() && !policy_->probing();
  uint32_t nodes = by_worth ? limits_.max_nodes : budget_.nodes;
  const uint32_t remaining = request_.max_tokens - OutputLength();
  uint32_t depth = by_worth ? std::min(limits_.max_depth, remaining - 1) : budget_.depth;
  if (policy_->stop_below() > 0.0) {
    depth = std::min(depth, mirror.StopDepth(policy_->stop_below()).value_or(depth));
    nodes = std::min(nodes, limits_.NodesFor(depth));
  }
  if (samples_drafts() && request_.constraint != nullptr)
    depth = std::min(depth, request_.constraint->most_masks());
  // Nodes that were drafted ahead have more children than may be verified, and even a chain's have siblings.
  const uint32_t most_children = by_worth ? UINT32_MAX : budget_.branching;
  return mirror.Select({.max_nodes = std::min(nodes, max_nodes),
                        .max_depth = depth,
                        .max_children = limits_.shape == TreeShape::kChain ? 1 : most_children},
                       worth);
}

ChoiceSession Session::Choice() const {
  ChoiceSession choice;
  choice.candidates.reserve(selected_.size());
  for (uint32_t i = 0; i < selected_.size(); ++i) {
    uint32_t parent = ChoiceNode::kRoot;
    double above = 1.0;
    if (selected_[i].depth > 1) {
      const auto found = std::find_if(selected_.begin(), selected_.begin() + i,
                                      [&](const TreeNode& node) { return node.id == selected_[i].parent; });
      parent = static_cast<uint32_t>(found - selected_.begin());
      above = found->path_score;
    } else if (policy_->probing() && !choice.probe.has_value() && guesses_[i].IsBy(DraftOrigin::kDrafter)) {
      // A probe tests the drafter, whatever other sources there are; its first node is its best.
      choice.probe = i;
    }
    choice.candidates.push_back(
        {.parent = parent, .probability = above > 0.0 ? selected_[i].path_score / above : 0.0});
  }
  return choice;
}

void Session::KeepNodes(absl::Span<const uint32_t> indices) {
  for (size_t i = 0; i < indices.size(); ++i) {
    selected_[i] = selected_[indices[i]];
    guesses_[i] = guesses_[indices[i]];
  }
  selected_.resize(indices.size());
  guesses_.resize(indices.size());
}

// Gives each selected node a slot to be computed in, and a place behind the committed tokens should it be
// accepted. When memory is short the tree ends before the first node without: smaller is slower, not wrong.
void Session::GiveSlots() {
  const auto length = static_cast<uint32_t>(kv_.tokens().size());
  for (size_t i = 0; i < selected_.size(); ++i) {
    const bool has_place = kv_.Reserve(length + selected_[i].depth).ok();
    const absl::StatusOr<SlotId> slot = kv_.AllocateScratch();
    if (!has_place || !slot.ok()) {
      selected_.resize(i);
      guesses_.resize(i);
      return;
    }
    slots_.push_back(*slot);
  }
}

// An engine that chooses needs the masks of all rows beforehand. The tree ends before the first node without.
void Session::MaskAhead() {
  if (!chooses_in_engine_ || request_.constraint == nullptr) return;
  const size_t num_nodes = request_.constraint->MaskAhead(selected_) - 1;
  selected_.resize(num_nodes);
  guesses_.resize(num_nodes);
}

void Session::PlanRound(absl::Time now, std::vector<StepRow>& rows) {
  assert(prefilled());
  slots_.clear();
  tails_.clear();
  tail_ends_.clear();
  MaskAhead();
  GiveSlots();
  const bool drawn = samples_drafts() && !guesses_.empty() && guesses_[0].IsBy(DraftOrigin::kDrafter);
  draws_ = drawn ? mirror_.DrawsOf(selected_) : std::vector<DrawGroup>();
  round_waited_ = wait_until_ > absl::InfinitePast();
  const absl::Duration waited = std::min(now, wait_until_) - wait_since_;
  round_wait_seconds_ = round_waited_ ? std::max(absl::ToDoubleSeconds(waited), 0.0) : 0.0;

  const auto root = static_cast<uint32_t>(kv_.tokens().size()) - 1;
  first_row_ = static_cast<uint32_t>(rows.size());
  rows.push_back({.token = kv_.tokens()[root], .context = kv_.CommittedRow(root), .adapter = adapter_});
  // A node's context beyond the committed prefix is its parent's, then its own slot.
  size_t total = 0;
  for (const TreeNode& node : selected_) total += node.depth;
  tails_.reserve(total);
  for (size_t i = 0; i < selected_.size(); ++i) {
    const auto parent = std::find_if(selected_.begin(), selected_.begin() + static_cast<ptrdiff_t>(i),
                                     [&](const TreeNode& node) { return node.id == selected_[i].parent; });
    const size_t begin = tails_.size();
    if (selected_[i].parent != 0) {
      const auto parent_index = static_cast<size_t>(parent - selected_.begin());
      const uint32_t parent_begin = parent_index == 0 ? 0 : tail_ends_[parent_index - 1];
      for (uint32_t at = parent_begin; at < tail_ends_[parent_index]; ++at) tails_.push_back(tails_[at]);
    }
    tails_.push_back(slots_[i]);
    tail_ends_.push_back(static_cast<uint32_t>(tails_.size()));
    rows.push_back({.token = selected_[i].token,
                    .context = {.blocks = kv_.blocks(),
                                .num_committed = root + 1,
                                .tail = absl::MakeConstSpan(tails_).subspan(begin)},
                    .adapter = adapter_});
  }
  if (!chooses_in_engine_) return;
  absl::Span<const std::vector<uint32_t>> allowed;
  if (request_.constraint != nullptr) {
    allowed = request_.constraint->masks_ahead().first(1 + selected_.size());
  }
  choices_.Plan({.sampling = &request_.sampling,
                 .sampler = &sampler_,
                 .position = root + 1,
                 .nodes = selected_,
                 .allowed = allowed},
                absl::MakeSpan(rows).subspan(first_row_));
}

void Session::Walk(absl::Span<const StepRow> rows, RoundResult& result, std::vector<KvCopy>* copies) {
  static const SeededRule* const seeded = new SeededRule();
  result.committed.offset = OutputLength();
  accepted_.clear();
  walked_to_the_end_ = true;
  auto position = static_cast<uint32_t>(kv_.tokens().size());
  const auto logits = [&](std::optional<uint32_t> node) {
    const uint32_t row = node.has_value() ? first_row_ + 1 + *node : first_row_;
    const auto row_logits = absl::MakeSpan(rows[row].logits, static_cast<size_t>(vocab_size_));
    if (request_.constraint != nullptr) request_.constraint->Mask(node, row_logits);
    return row_logits;
  };
  const VerifiedRound round{.position = position,
                            .seed = request_.sampling.seed,
                            .num_logprobs = request_.num_logprobs,
                            .nodes = selected_,
                            .groups = draws_,
                            .chosen = choices_.tokens(),
                            .logits = logits};
  const VerificationRule* const rule = samples_drafts() ? sampling_rule_ : seeded;
  if (request_.constraint != nullptr) request_.constraint->BeginWalk(selected_);
  std::vector<VerifiedToken> tokens = rule->Verify(round, sampler_);
  if (request_.constraint != nullptr) request_.constraint->EndWalk();
  result.committed.tokens.reserve(tokens.size());
  for (VerifiedToken& verified : tokens) {
    if (absl::Status chosen = TakeChoice(verified.choice.token, result.committed.tokens); !chosen.ok()) {
      end_status_ = std::move(chosen);
      finished_ = true;
      walked_to_the_end_ = false;
      return;
    }
    CommittedToken token{.token = verified.choice.token};
    if (verified.node.has_value()) token.drafted_by = guesses_[*verified.node].credited();
    token.choice = std::move(verified.choice);
    OutputPiece piece = request_.output->Push(token.token);
    token.text_bytes = static_cast<uint32_t>(piece.text.size());
    result.committed.text += piece.text;
    result.committed.tokens.push_back(std::move(token));
    if (verified.node.has_value()) {
      accepted_.push_back(*verified.node);
      copies->push_back({.from = slots_[*verified.node], .to = kv_.CommittedSlot(position)});
    }
    ++position;
    if (piece.end.has_value()) {
      summary_.end = *std::move(piece.end);
      finished_ = true;
      walked_to_the_end_ = !verified.node.has_value();
      return;
    }
  }
}

// This commit left no tree, so growth below it shows how long a draft takes from the start.
void Session::ExpectGrowth(absl::Time now) {
  if (!mirror_.tree().empty() || budget_.depth == 0 || !draft_opened_) return;
  awaited_commits_.emplace_back(commit_no_, now);
  if (awaited_commits_.size() > kAwaitedCommits) awaited_commits_.pop_front();
}

std::optional<double> Session::TakeRoundSeconds(absl::Time now, uint32_t committed) {
  const std::optional<absl::Time> last = std::exchange(last_round_, now);
  if (!last.has_value()) return std::nullopt;
  const double seconds = absl::ToDoubleSeconds(now - *last);
  summary_.decode_tokens += committed;
  summary_.decode_seconds += std::max(seconds, 0.0);
  return seconds;
}

Session::RoundResult Session::ConcludeRound(absl::Time now, absl::Span<const StepRow> rows,
                                            const RoundCosts& costs, std::vector<KvCopy>* copies) {
  RoundResult result;
  Walk(rows, result, copies);
  TokenIds tokens;
  tokens.reserve(result.committed.tokens.size());
  for (const CommittedToken& token : result.committed.tokens) tokens.push_back(token.token);
  planned_ = static_cast<uint32_t>(kv_.tokens().size() + accepted_.size());
  kv_.Append(tokens);
  ReadLocally();
  forced_proposal_.reset();
  predicted_proposal_.reset();
  if (prediction_calibration_ != nullptr) request_.prediction->Observe(tokens);
  summary_.output_tokens = OutputLength();

  RoundReport& report = result.report;
  summary_.masked_draft_tokens = num_banned_;
  report.masked = num_masked_;
  if (request_.constraint != nullptr) {
    summary_.masked_draft_tokens += request_.constraint->num_dropped();
    const MaskWork work = request_.constraint->TakeMaskWork();
    report.mask_seconds = absl::ToDoubleSeconds(work.time);
    report.masks = work.masks;
    report.masks_start = work.start;
    report.masks_end = work.end;
  }
  for (const TreeNode& node : selected_) report.depth = std::max(report.depth, node.depth);
  report.nodes = static_cast<uint32_t>(selected_.size());
  report.accepted = static_cast<uint32_t>(accepted_.size());
  report.committed = static_cast<uint32_t>(tokens.size());
  if (report.depth > 0) verified_per_level_.Add(static_cast<double>(report.nodes) / report.depth);
  report.supply = SupplyOfRound();
  report.kind =
      selected_.empty() ? RoundKind::kUndrafted : (round_waited_ ? RoundKind::kMiss : RoundKind::kHit);
  result.committed.kind = report.kind;
  result.committed.depth = report.depth;
  result.committed.nodes = report.nodes;
  const std::array<OriginOutcome, kNumDraftOrigins> outcomes = OutcomesOfRound();
  FillShares(report, outcomes);
  guess_seconds_ = {};
  result.committed.drafters = report.drafters;
  result.committed.shares = report.shares;
  CountRound(report, outcomes);
  const OriginOutcome& drafted = outcomes[static_cast<size_t>(DraftOrigin::kDrafter)];
  ObserveRound(report, tokens, outcomes);
  if (round_waited_ && drafted.guessed == 0) ++waits_in_vain_;
  wait_until_ = absl::InfinitePast();
  hold_until_ = absl::InfinitePast();
  round_drafts_pay_ = std::exchange(drafts_pay_, costs.drafting_pays);
  round_ahead_pays_ = std::exchange(ahead_pays_, costs.ahead_pays);
  if (finished_) return result;

  ++commit_no_;
  prefix_hash_ = ExtendPrefixHash(prefix_hash_, tokens);
  if (draft_suspended_) result.resume_draft = DepthWanted(costs) > 0;
  if (!drafting_) return result;
  budget_ = limits_.BudgetFor(DepthWanted(costs), costs.batch, costs.ahead_pays);
  rounds_without_budget_ = budget_.depth == 0 ? rounds_without_budget_ + 1 : 0;
  if (rounds_without_budget_ > kRoundsToSuspension) {
    result.suspend_draft = true;
    return result;
  }
  result.commit = MakeCommit(mirror_, tokens);
  if (standby_ != nullptr) {
    result.standby_commit = MakeCommit(standby_->mirror, tokens);
    standby_->budget = budget_;
  }
  if (partner_ != nullptr) result.partner_commit = MakeCommit(partner_->mirror, tokens);
  ExpectGrowth(now);
  return result;
}

void Session::SettleKv() {
  kv_.FreeAllScratch();
  kv_.MarkComputed(planned_);
  kv_.ReleaseUnused();
}

}  // namespace tandem
