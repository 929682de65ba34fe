#include "verifier/session/session.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/node_index.h"
#include "verifier/session/drafter_record.h"

namespace tandem {
namespace {

// A prompt whose log probabilities are wanted is computed as a whole, so it shares no blocks.
PrefixSpace SpaceOf(const SessionRequest& request, SessionId id) {
  return {request.num_prompt_logprobs < 0 ? request.cache_salt : HashCombine(request.cache_salt, ~id),
          request.adapter == nullptr ? kNoAdapter : request.adapter->id};
}

// After this many consecutive rounds with nothing to draft, the session is suspended at the drafter. It is
// more than a probe of plain decoding takes (DraftPayoff); otherwise every session would have to be reopened
// after a probe.
constexpr uint32_t kRoundsToSuspension = 16;

}  // namespace

Session::Session(SessionId id, SessionRequest request, std::unique_ptr<WindowPolicy> policy,
                 const WindowLimits& limits, BlockPool* pool, int32_t vocab_size)
    : id_(id),
      request_(std::move(request)),
      limits_(limits),
      policy_(std::move(policy)),
      vocab_size_(vocab_size),
      adapter_(request_.adapter == nullptr ? kNoAdapter : request_.adapter->id),
      sampler_(request_.sampling, vocab_size, request_.prompt),
      kv_(pool, SpaceOf(request_, id)),
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
  assert(!drafting() && !finished_);
  kv_.Suspend();
  planned_ = 0;
  last_round_.reset();
  if (DraftPeer* const drafter = peer(DraftRole::kDrafter); drafter != nullptr && drafter->suspended()) {
    drafter->Close();
  }
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

SessionId Session::NewDraftId() {
  SessionId draft_id = 0;
  do {
    draft_id = id_ | SessionId{num_peers_++ & 0xff} << kPeerShift;
  } while (RoleOf(draft_id).has_value());
  return draft_id;
}

void Session::Bind(DraftRole role, DrafterBinding to, DrafterRecord* record, absl::Time now) {
  assert(!IsOpen(role));
  peer_ptr(role) = std::make_unique<DraftPeer>(NewDraftId(), std::move(to), record, vocab_size_, now);
  if (role == DraftRole::kDrafter) OnNewDrafter();
}

void Session::Promote(DraftRole from) {
  peer_ptr(DraftRole::kDrafter) = std::move(peer_ptr(from));
  // Until it has answered, it may be lost as well.
  if (peer(DraftRole::kDrafter)->answered()) summary_.drafter_lost.clear();
  OnNewDrafter();
}

void Session::OnNewDrafter() {
  wait_ = {};
  summary_.drafter = peer(DraftRole::kDrafter)->binding().name;
  summary_.drafter_accepted_tokens = 0;
  summary_.drafter_rejections = 0;
}

std::optional<DraftRole> Session::RoleOf(SessionId draft_id) const {
  for (const DraftRole role : kDraftRoles) {
    if (peer(role) != nullptr && peer(role)->draft_id() == draft_id) return role;
  }
  return std::nullopt;
}

bool Session::Holds(const DrafterRecord* record) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const auto& peer) { return peer != nullptr && peer->record() == record; });
}

bool Session::WantsDrafts(const RoundCosts& costs) {
  return policy_->NextDepth(costs) > 0;
}

OpenSession Session::OpenAt(DraftRole role, uint64_t vocabulary_fingerprint, const RoundCosts& costs) {
  DraftBudget budget;
  if (role == DraftRole::kDrafter) {
    rounds_without_budget_ = 0;
    drafts_pay_ = costs.drafting_pays;
    ahead_pays_ = costs.ahead_pays;
    last_round_.reset();
    budget = limits_.BudgetFor(DepthWanted(costs), costs.batch, costs.ahead_pays);
  } else {
    budget = peer(DraftRole::kDrafter)->budget();
  }
  const absl::Span<const TokenId> tokens = kv_.tokens();
  return peer(role)->Open({.vocabulary_fingerprint = vocabulary_fingerprint,
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
                           .constraint = request_.wire_constraint});
}

DraftPeer::Outcome Session::OnDraftResponse(DraftRole role, const DraftResponse& response,
                                            absl::Time received) {
  const bool is_drafter = role == DraftRole::kDrafter;
  if (const auto* grow = std::get_if<Grow>(&response.event);
      is_drafter && request_.trace_rounds && grow != nullptr && growth_trace_.size() < kMaxTracedGrowth) {
    growth_trace_.push_back({.received = received,
                             .nodes = static_cast<uint32_t>(grow->tokens.size()),
                             .step_seconds = grow->step_seconds});
  }
  DraftPeer::Outcome outcome = peer(role)->OnResponse(response, received);
  if (!is_drafter) return outcome;
  // Not from the time of the request, because a connection that is being retried has no peer yet.
  if (outcome.event == DraftPeer::Event::kOpened) summary_.drafter_lost.clear();
  if (outcome.added > 0) rebinds_in_a_row_ = 0;
  return outcome;
}

void Session::LoseDrafter(absl::string_view reason) {
  wait_ = {};
  summary_.drafter_lost = std::string(reason);
}

bool Session::LacksDrafts() const {
  const DraftPeer* const drafter = open_peer(DraftRole::kDrafter);
  const DraftPeer* const partner = open_peer(DraftRole::kPartner);
  return drafter != nullptr && drafter->LacksDrafts() && prefilled() && !finished_ &&
         (partner == nullptr || partner->mirror().tree().empty()) && !policy_->probing();
}

void Session::WaitFor(absl::Time now, absl::Duration alone, absl::Duration held, uint32_t depth) {
  wait_ = {.since = now, .until = now + alone, .hold_until = now + std::min(alone, held), .depth = depth};
}

bool Session::ReadyForRound(absl::Time now) const {
  if (!prefilled() || finished_) return false;
  const DraftPeer* const drafter = open_peer(DraftRole::kDrafter);
  // A clock that was set back must not make the wait any longer.
  if (drafter == nullptr || drafter->budget().depth == 0 || now >= wait_.until || now < wait_.since) {
    return true;
  }
  const DraftPeer* const partner = open_peer(DraftRole::kPartner);
  return (partner != nullptr && partner->mirror().depth() >= wait_.depth) ||
         drafter->HasAwaited(wait_.depth, policy_->stop_below());
}

bool Session::MergesOrigins() const {
  return policy_->heeds_worth() && !samples_drafts();
}

void Session::PrepareRound(uint32_t max_nodes) {
  offered_ = {};
  const DraftPeer* const bound = peer(DraftRole::kDrafter);
  const DraftPeer* const drafter = open_peer(DraftRole::kDrafter);
  const DraftPeer* const partner = open_peer(DraftRole::kPartner);
  round_peers_ = {};
  if (bound != nullptr) round_peers_[static_cast<size_t>(DraftRole::kDrafter)] = bound->draft_id();
  if (partner != nullptr) round_peers_[static_cast<size_t>(DraftRole::kPartner)] = partner->draft_id();
  round_drafters_ = {.drafter = bound == nullptr ? std::string() : bound->binding().name,
                     .partner = partner == nullptr ? std::string() : partner->binding().name};
  const bool has_window = drafter != nullptr && drafter->budget().depth > 0;
  // An output's last token has no use for drafts.
  drafts_wanted_ = has_window && OutputLength() + 1 < request_.max_tokens;
  drafts_offered_ = drafts_wanted_ && !drafter->mirror().tree().empty();
  num_masked_ = 0;
  masked_.clear();
  RoundTree drafted;
  if (has_window) drafted = SelectDrafted(DraftRole::kDrafter, max_nodes);
  if (samples_drafts() && !drafted.empty()) {
    // Draws use the drafter's ids.
    tree_ = std::move(drafted);
  } else {
    MergedTree merged;
    merged.Add(drafted);
    // Later sources only replace earlier ones that have nothing, unless all are merged.
    if (partner != nullptr && drafts_wanted_ && (merged.empty() || MergesOrigins())) {
      merged.Add(SelectDrafted(DraftRole::kPartner, max_nodes));
    }
    if (max_nodes > 0 && (merged.empty() || MergesOrigins())) {
      const float least = MergesOrigins() ? kLeastMergedScore : kLeastLocalScore;
      AddOwnNodes(least, &merged);
    }
    tree_ = std::move(merged).Take(std::min(limits_.max_nodes, max_nodes));
  }
  for (const RoundNode& node : tree_) ++offered_[static_cast<size_t>(node.guesses.credited())];
}

RoundTree Session::SelectDrafted(DraftRole role, uint32_t max_nodes) {
  const DraftMirror& mirror = peer(role)->mirror();
  const DraftBudget& budget = peer(role)->budget();
  ScoreCalibration& calibration = peer(role)->record()->calibration;
  const float temperature = request_.sampling.temperature;
  const auto worth = [&](const TreeNode& node) {
    return calibration.Calibrated(temperature, node.depth, node.score);
  };
  // What was drafted ahead can be worth more than what the window has room for.
  const bool by_worth = policy_->heeds_worth() && !policy_->probing();
  uint32_t nodes = by_worth ? limits_.max_nodes : budget.nodes;
  const uint32_t remaining = request_.max_tokens - OutputLength();
  uint32_t depth = by_worth ? std::min(limits_.max_depth, remaining - 1) : budget.depth;
  if (policy_->stop_below() > 0.0) {
    depth = std::min(depth, mirror.StopDepth(policy_->stop_below()).value_or(depth));
    nodes = std::min(nodes, limits_.NodesFor(depth));
  }
  if (samples_drafts() && request_.constraint != nullptr)
    depth = std::min(depth, request_.constraint->most_masks());
  // Nodes that were drafted ahead have more children than may be verified, and even a chain's have siblings.
  const uint32_t most_children = by_worth ? UINT32_MAX : budget.branching;
  RoundTree drafted =
      mirror.Select({.max_nodes = std::min(nodes, max_nodes),
                     .max_depth = depth,
                     .max_children = limits_.shape == TreeShape::kChain ? 1 : most_children},
                    role == DraftRole::kPartner ? DraftOrigin::kPartner : DraftOrigin::kDrafter, worth);
  DropForbidden(&drafted);
  return drafted;
}

void Session::ReadLocally() {
  for (OwnSource& own : own_sources_) own.Read(kv_.tokens(), request_.prompt.size());
}

void Session::AddOwnNodes(float least_path_score, MergedTree* tree) {
  const uint32_t remaining = request_.max_tokens - OutputLength();
  const OwnSource::Limits limits{.proposal = {.depth = std::min(limits_.max_depth, remaining - 1),
                                              .nodes = limits_.max_nodes,
                                              .branching = limits_.branching},
                                 .num_tokens = kv_.tokens().size(),
                                 .vocab_size = vocab_size_,
                                 .constraint = request_.constraint.get(),
                                 .temperature = request_.sampling.temperature,
                                 .least_path_score = least_path_score};
  for (OwnSource& own : own_sources_) {
    RoundTree nodes = own.Candidates(limits);
    DropBanned(&nodes);
    tree->Add(nodes);
  }
}

Session::LocalGuess Session::GuessLocally() {
  LocalGuess guess;
  MergedTree tree;
  AddOwnNodes(kLeastLocalScore, &tree);
  for (const RoundNode& node : std::move(tree).Take(limits_.max_nodes)) {
    ++guess.nodes;
    guess.expected_accepted += double{node.path_score};
  }
  return guess;
}

ChoiceSession Session::Choice() const {
  ChoiceSession choice{.nodes = tree_.nodes()};
  // A probe tests the drafter, whatever other sources there are; its first node is its best.
  for (uint32_t i = 0; policy_->probing() && !choice.probe.has_value() && i < tree_.size(); ++i) {
    if (tree_[i].parent == kRootNode && tree_[i].guesses.IsBy(DraftOrigin::kDrafter)) choice.probe = i;
  }
  return choice;
}

// Gives each node a slot to be computed in, and a place behind the committed tokens should it be
// accepted. When memory is short the tree ends before the first node without: smaller is slower, not wrong.
void Session::GiveSlots() {
  const auto length = static_cast<uint32_t>(kv_.tokens().size());
  for (size_t i = 0; i < tree_.size(); ++i) {
    const bool has_place = kv_.Reserve(length + tree_[i].depth).ok();
    const absl::StatusOr<SlotId> slot = kv_.AllocateScratch();
    if (!has_place || !slot.ok()) {
      tree_.Truncate(i);
      return;
    }
    slots_.push_back(*slot);
  }
}

// An engine that chooses needs the masks of all rows beforehand. The tree ends before the first node without.
void Session::MaskAhead() {
  if (!chooses_in_engine_ || request_.constraint == nullptr) return;
  tree_.Truncate(request_.constraint->MaskAhead(tree_.nodes()) - 1);
}

void Session::PlanRound(absl::Time now, std::vector<StepRow>& rows) {
  assert(prefilled());
  slots_.clear();
  tails_.clear();
  tail_ends_.clear();
  MaskAhead();
  GiveSlots();
  const bool drawn = samples_drafts() && !tree_.empty() && tree_[0].guesses.IsBy(DraftOrigin::kDrafter);
  draws_ = drawn ? peer(DraftRole::kDrafter)->mirror().DrawsOf(tree_.nodes()) : std::vector<DrawGroup>();
  round_waited_ = wait_.until > absl::InfinitePast();
  const absl::Duration waited = std::min(now, wait_.until) - wait_.since;
  round_wait_seconds_ = round_waited_ ? std::max(absl::ToDoubleSeconds(waited), 0.0) : 0.0;

  const auto root = static_cast<uint32_t>(kv_.tokens().size()) - 1;
  first_row_ = static_cast<uint32_t>(rows.size());
  rows.push_back({.token = kv_.tokens()[root], .context = kv_.CommittedRow(root), .adapter = adapter_});
  // A node's context beyond the committed prefix is its parent's, then its own slot.
  size_t total = 0;
  for (const RoundNode& node : tree_) total += node.depth;
  tails_.reserve(total);
  for (size_t i = 0; i < tree_.size(); ++i) {
    const uint32_t parent = tree_[i].parent;
    const size_t begin = tails_.size();
    if (parent != kRootNode) {
      const uint32_t parent_begin = parent == 0 ? 0 : tail_ends_[parent - 1];
      for (uint32_t at = parent_begin; at < tail_ends_[parent]; ++at) tails_.push_back(tails_[at]);
    }
    tails_.push_back(slots_[i]);
    tail_ends_.push_back(static_cast<uint32_t>(tails_.size()));
    rows.push_back({.token = tree_[i].token,
                    .context = {.blocks = kv_.blocks(),
                                .num_committed = root + 1,
                                .tail = absl::MakeConstSpan(tails_).subspan(begin)},
                    .adapter = adapter_});
  }
  if (!chooses_in_engine_) return;
  absl::Span<const std::vector<uint32_t>> allowed;
  if (request_.constraint != nullptr) {
    allowed = request_.constraint->masks_ahead().first(1 + tree_.size());
  }
  choices_.Plan({.sampling = &request_.sampling,
                 .sampler = &sampler_,
                 .position = root + 1,
                 .nodes = tree_.nodes(),
                 .allowed = allowed},
                absl::MakeSpan(rows).subspan(first_row_));
}

void Session::Walk(absl::Span<const StepRow> rows, RoundResult& result, std::vector<KvCopy>* copies) {
  static const SeededRule* const seeded = new SeededRule();
  result.committed.offset = OutputLength();
  accepted_.clear();
  walked_to_the_end_ = true;
  auto position = static_cast<uint32_t>(kv_.tokens().size());
  const auto logits = [&](uint32_t node) {
    const uint32_t row = first_row_ + PlaceAfterRoot(node);
    const auto row_logits = absl::MakeSpan(rows[row].logits, static_cast<size_t>(vocab_size_));
    if (request_.constraint != nullptr) request_.constraint->Mask(node, row_logits);
    return row_logits;
  };
  const VerifiedRound round{.position = position,
                            .seed = request_.sampling.seed,
                            .num_logprobs = request_.num_logprobs,
                            .nodes = tree_.nodes(),
                            .groups = draws_,
                            .chosen = choices_.tokens(),
                            .logits = logits};
  const VerificationRule* const rule = samples_drafts() ? sampling_rule_ : seeded;
  if (request_.constraint != nullptr) request_.constraint->BeginWalk(tree_.nodes());
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
    if (verified.node.has_value()) token.drafted_by = tree_[*verified.node].guesses.credited();
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
  summary_.output_tokens = OutputLength();

  RoundReport& report = result.report;
  summary_.masked_draft_tokens = num_banned_;
  report.masked = num_masked_;
  for (const OwnSource& own : own_sources_) report.masked += own.num_masked();
  if (request_.constraint != nullptr) {
    summary_.masked_draft_tokens += request_.constraint->num_dropped();
    const MaskWork work = request_.constraint->TakeMaskWork();
    report.mask_seconds = absl::ToDoubleSeconds(work.time);
    report.masks = work.masks;
    report.masks_start = work.start;
    report.masks_end = work.end;
  }
  for (const RoundNode& node : tree_) report.depth = std::max(report.depth, node.depth);
  report.nodes = tree_.size();
  report.accepted = static_cast<uint32_t>(accepted_.size());
  report.committed = static_cast<uint32_t>(tokens.size());
  if (report.depth > 0) verified_per_level_.Add(static_cast<double>(report.nodes) / report.depth);
  report.supply = SupplyOfRound();
  report.kind = tree_.empty() ? RoundKind::kUndrafted : (round_waited_ ? RoundKind::kMiss : RoundKind::kHit);
  result.committed.kind = report.kind;
  result.committed.depth = report.depth;
  result.committed.nodes = report.nodes;
  const std::array<OriginOutcome, kNumDraftOrigins> outcomes = OutcomesOfRound();
  FillShares(report, outcomes);
  for (OwnSource& own : own_sources_) own.ForgetCosts();
  result.committed.drafters = report.drafters;
  result.committed.shares = report.shares;
  CountRound(report, outcomes);
  const OriginOutcome& drafted = outcomes[static_cast<size_t>(DraftOrigin::kDrafter)];
  ObserveRound(report, tokens, outcomes);
  DraftPeer* const drafter = peer(DraftRole::kDrafter);
  if (round_waited_ && drafted.guessed == 0 && WasInRound(DraftRole::kDrafter)) drafter->CountVainWait();
  wait_ = {};
  round_drafts_pay_ = std::exchange(drafts_pay_, costs.drafting_pays);
  round_ahead_pays_ = std::exchange(ahead_pays_, costs.ahead_pays);
  if (finished_) return result;

  ++commit_no_;
  prefix_hash_ = ExtendPrefixHash(prefix_hash_, tokens);
  if (drafter == nullptr) return result;
  if (drafter->suspended()) result.resume_draft = DepthWanted(costs) > 0;
  if (!drafter->drafting()) return result;
  const Commit commit{.commit_no = commit_no_,
                      .tokens = std::move(tokens),
                      .committed_len = static_cast<uint32_t>(kv_.tokens().size()),
                      .prefix_hash = prefix_hash_,
                      .budget = limits_.BudgetFor(DepthWanted(costs), costs.batch, costs.ahead_pays)};
  if (!costs.is_control) {
    rounds_without_budget_ = commit.budget.depth == 0 ? rounds_without_budget_ + 1 : 0;
  }
  if (rounds_without_budget_ > kRoundsToSuspension) {
    result.suspend_draft = true;
    return result;
  }
  for (const DraftRole role : kDraftRoles) {
    if (DraftPeer* const open = open_peer(role); open != nullptr) {
      result.commits[static_cast<size_t>(role)] = open->AddCommit(commit, now);
    }
  }
  return result;
}

void Session::SettleKv() {
  kv_.FreeAllScratch();
  kv_.MarkComputed(planned_);
  kv_.ReleaseUnused();
}

}  // namespace tandem
