#include "drafter/drafting/draft_session.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// A peer may ask for more children of a node than could ever pay.
constexpr uint32_t kMaxBranching = 32;

uint32_t KeptByANewWindow(uint32_t context_length) {
  return context_length - context_length / 4;
}

absl::Status Lost(absl::string_view reason) {
  return absl::AbortedError(reason);
}

// Of a tree's budget, an eighth is forwarded in a step.
constexpr uint32_t kNodesPerStepNode = 8;
// A step that drafts ahead has time: so many times as many nodes as one that a round waits for.
constexpr uint32_t kAheadWidth = 2;

// Requests with different seeds draw differently, and so do drafters.
PhiloxKey DrawKey(uint64_t draw_seed, uint64_t request_seed) {
  const PhiloxCounter words =
      Philox4x32({static_cast<uint32_t>(request_seed), static_cast<uint32_t>(request_seed >> 32), 0, 0},
                 {static_cast<uint32_t>(draw_seed), static_cast<uint32_t>(draw_seed >> 32)});
  return {words[0], words[1]};
}

}  // namespace

void StepBatch::Clear() {
  rows_.clear();
  num_tails_ = 0;
  num_logits_ = 0;
  num_states_ = 0;
}

void StepBatch::Add(TokenId token, const RowContext& context, float* logits, const FeatureRequest* features,
                    const InputState* state) {
  rows_.push_back(
      {.token = token, .context = context, .logits = logits, .features = features, .state = state});
}

absl::Span<SlotId> StepBatch::NewTail(size_t size) {
  if (num_tails_ == tails_.size()) tails_.emplace_back();
  std::vector<SlotId>& tail = tails_[num_tails_++];
  tail.resize(size);
  return absl::MakeSpan(tail);
}

float* StepBatch::NewLogits(size_t size) {
  if (num_logits_ == logits_.size()) logits_.emplace_back();
  std::vector<float>& logits = logits_[num_logits_++];
  logits.resize(size);
  return logits.data();
}

StepBatch::State& StepBatch::NewState(size_t size) {
  if (num_states_ == states_.size()) states_.emplace_back();
  State& state = states_[num_states_++];
  state.values.resize(size);
  return state;
}

const FeatureRequest* StepBatch::NewStateRequest(int32_t hidden_size) {
  State& state = NewState(static_cast<size_t>(hidden_size));
  state.request = {.final_norm = true, .states = state.values.data()};
  return &state.request;
}

const FeatureRequest* StepBatch::NewOutputRequest(uint32_t num_layers, int32_t hidden_size) {
  State& state = NewState(static_cast<size_t>(hidden_size));
  state.layer = num_layers;
  state.request = {.layers = absl::MakeConstSpan(&state.layer, 1), .states = state.values.data()};
  return &state.request;
}

absl::Span<float> StepBatch::NewInput(size_t size, bool own, const InputState** input) {
  State& state = NewState(size);
  state.input = {.values = state.values, .own = own};
  *input = &state.input;
  return absl::MakeSpan(state.values);
}

DraftSession::DraftSession(const DraftModel* model, uint64_t cache_salt, uint64_t vocabulary_fingerprint,
                           uint32_t expand_width, uint64_t draw_seed, DraftCounters* counters)
    : model_(model),
      cache_salt_(cache_salt),
      vocabulary_fingerprint_(vocabulary_fingerprint),
      bridge_(BridgeFor(*model, vocabulary_fingerprint).value()),
      is_head_(has_engine() && model->engine->config().head.has_value()),
      gives_levels_(is_head_ && model->engine->config().head->gives_levels()),
      is_medusa_(is_head_ && !model->engine->config().head->reads_context()),
      kv_salt_(bridge_ == nullptr ? cache_salt : HashCombine(cache_salt, vocabulary_fingerprint)),
      expand_width_(expand_width),
      draw_seed_(draw_seed),
      counters_(counters),
      kv_(model->pool, kv_salt_) {
  for (SourceHost* source : model->sources) {
    sources_.push_back(source->NewSession(cache_salt, vocabulary_fingerprint));
  }
}

DraftSession::~DraftSession() {
  DropTree(&counters_->stale_nodes);
}

absl::Status DraftSession::Open(const OpenSession& open) {
  DropTree(&counters_->stale_nodes);
  epoch_ = open.epoch;
  commit_no_ = open.commit_no;
  committed_len_ = static_cast<uint32_t>(open.tokens.size());
  prefix_hash_ = open.prefix_hash;
  lost_ = false;
  next_id_ = 1;
  said_exhausted_ = false;
  released_ = false;
  root_ready_ = !has_engine();
  sampled_ = open.sampled_drafts;
  predicts_ = open.predict_acceptance && model_->stop_head != nullptr && has_engine() && !is_head() &&
              model_->engine->has_features();
  predictions_.clear();
  temperature_ = open.sampling.temperature;
  draw_key_ = DrawKey(draw_seed_, open.sampling.seed);
  const absl::Span<const TokenId> tokens = open.tokens;
  AwaitConstraint(open);
  SetBudget(open.budget);
  if (has_engine()) {
    sampler_.emplace(open.sampling, vocab_size(), tokens.first(open.prompt_length));
    for (TokenId token : tokens.subspan(open.prompt_length)) sampler_->Append(token);
    TANDEM_RETURN_IF_ERROR(is_head() ? OpenHeadWindow(open) : OpenWindow(tokens));
    if (is_head()) told_features_ = features_->end();
  }
  for (const auto& source : sources_) source->Start(tokens, open.prompt_length);
  ProposeFromSources();
  Promote();
  FlushGrowth();
  return absl::OkStatus();
}

absl::Status DraftSession::OpenWindow(absl::Span<const TokenId> tokens) {
  // The old window can be gone on with if it starts where the sequence does, or the sequence is too long for
  // that, and if it still has room.
  const size_t old_length = kv_.tokens().size();
  const bool from_start = window_start_ == 0 || WindowIsFull(tokens.size());
  if (!parked_ && from_start && tokens.size() > window_start_ &&
      !WindowIsFull(tokens.size() - window_start_)) {
    const absl::Span<const TokenId> window = tokens.subspan(window_start_);
    size_t common = 0;
    // The last token counts as new even if it is not: its logits are wanted.
    while (common + 1 < window.size() && common < old_length && window[common] == kv_.tokens()[common]) {
      ++common;
    }
    if (common > 0) {
      kv_.Truncate(static_cast<uint32_t>(common));
      kv_.Append(window.subspan(common));
      return ReserveWindow();
    }
  }
  return StartWindow(tokens);
}

// A window is full when it leaves the tree less room than the budget's depth or a quarter of the context,
// whichever is less.
bool DraftSession::WindowIsFull(size_t length) const {
  return length + std::min(limits_.depth, model_->context_length / 4) > model_->context_length;
}

absl::Status DraftSession::StartWindow(absl::Span<const TokenId> tokens) {
  root_ready_ = false;
  if (WindowIsFull(tokens.size())) tokens = tokens.last(KeptByANewWindow(model_->context_length));
  window_start_ = committed_len_ - static_cast<uint32_t>(tokens.size());
  kv_ = SequenceKv(model_->pool, kv_salt_);
  kv_.Start(tokens);
  parked_ = false;
  return ReserveWindow();
}

uint32_t DraftSession::NumBlocksOfWindow() const {
  return static_cast<uint32_t>((kv_.tokens().size() + kBlockTokens - 1) / kBlockTokens);
}

absl::Status DraftSession::ReserveWindow() {
  const auto length = static_cast<uint32_t>(kv_.tokens().size());
  absl::Status reserved = kv_.Reserve(length);
  if (reserved.ok()) return reserved;
  if (NumBlocksOfWindow() > model_->pool->num_blocks()) return reserved;
  // Committed tokens matter more than candidates.
  LoseTreeKv();
  if (!kv_.Reserve(length).ok()) Park();
  return absl::OkStatus();
}

void DraftSession::Park() {
  LoseTreeKv();
  kv_.Suspend();
  parked_ = true;
  ++counters_->parked_sessions;
}

bool DraftSession::Unpark() {
  assert(parked_);
  if (NumBlocksOfWindow() > model_->pool->num_available()) return false;
  kv_.Resume();
  // What the cache has is part of what was counted.
  [[maybe_unused]] const absl::Status reserved = kv_.Reserve(static_cast<uint32_t>(kv_.tokens().size()));
  assert(reserved.ok());
  parked_ = false;
  // The states that a head needs now have been used, or came meanwhile and were not kept.
  if (is_head() && (missed_features_ || features_->begin() > NextFeature())) lost_ = true;
  RebuildQueues();
  return true;
}

void DraftSession::SetBudget(const DraftBudget& budget) {
  limits_.depth = 0;
  limits_.nodes = 0;
  limits_.verified = UINT32_MAX;
  if (budget.depth == 0 || budget.nodes == 0 || budget.branching == 0) return;
  const uint64_t levels = uint64_t{budget.depth} + budget.lookahead;
  limits_.depth = static_cast<uint32_t>(std::min<uint64_t>(levels, kMaxTreeDepth));
  // nodes * (1 + lookahead / depth), rounded down; fits 64 bits as the first factor is bounded.
  limits_.nodes = static_cast<uint32_t>(std::min<uint64_t>(
      std::min<uint64_t>(budget.nodes, kMaxTreeNodes) * levels / budget.depth, kMaxTreeNodes));
  limits_.branching = std::min(budget.branching, kMaxBranching);
  limits_.shape = budget.shape;
  limits_.step_nodes = std::clamp(limits_.nodes / kNodesPerStepNode, 1u, expand_width_);
  if (budget.shape == TreeShape::kChain) {
    limits_.branching = 1;
    limits_.nodes = std::min(limits_.nodes, limits_.depth);
  }
  limits_.ahead_branching = limits_.branching;
  if (budget.ahead_nodes > 0 && budget.shape != TreeShape::kEagle2 && !sampled_) {
    limits_.verified = std::min(limits_.nodes, budget.nodes);
    limits_.nodes = static_cast<uint32_t>(
        std::min<uint64_t>(uint64_t{limits_.verified} + budget.ahead_nodes, kMaxTreeNodes));
    limits_.ahead_branching = std::clamp(budget.ahead_branching, limits_.branching, kMaxBranching);
    limits_.ahead_step_nodes = kAheadWidth * expand_width_;
  }
  if (budget.shape == TreeShape::kEagle2) {
    // What is expanded may not be among the best in the end.
    limits_.nodes = std::min(limits_.nodes + limits_.branching * limits_.depth, kMaxTreeNodes);
  }
}

absl::Status DraftSession::CheckCommit(const Commit& commit) const {
  if (commit.commit_no != commit_no_ + 1) {
    return Lost(absl::StrCat("commit ", commit.commit_no, " after commit ", commit_no_));
  }
  const int32_t num_tokens = has_engine() ? vocab_size() : INT32_MAX;
  for (TokenId token : commit.tokens) {
    if (token < 0 || token >= num_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit ", commit.commit_no, ": token ", token, ", expected [0, ", num_tokens, ")"));
    }
  }
  if (commit.tokens.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit ", commit.commit_no, " has no token, expected at least the bonus token"));
  }
  if (commit.committed_len != uint64_t{committed_len_} + commit.tokens.size()) {
    return Lost(absl::StrCat("commit ", commit.commit_no, " of ", commit.tokens.size(), " tokens makes ",
                             commit.committed_len, " committed tokens out of ", committed_len_));
  }
  if (ExtendPrefixHash(prefix_hash_, commit.tokens) != commit.prefix_hash) {
    return Lost(absl::StrFormat("commit %d: prefix hash %016x does not match the tokens", commit.commit_no,
                                commit.prefix_hash));
  }
  return absl::OkStatus();
}

// The longest path from the root whose tokens are the first of `tokens`.
std::vector<NodeId> DraftSession::MatchPath(absl::Span<const TokenId> tokens) const {
  std::vector<NodeId> path;
  path.reserve(tokens.size());
  NodeId above = 0;
  for (TokenId token : tokens) {
    const TreeNode* node = tree_.FindChild(above, token);
    if (node == nullptr) break;
    above = node->id;
    path.push_back(above);
  }
  return path;
}

absl::Status DraftSession::OnCommit(const Commit& commit) {
  if (lost_ || commit.epoch < epoch_ || (commit.epoch == epoch_ && commit.commit_no <= commit_no_)) {
    ++counters_->ignored_commits;
    return absl::OkStatus();
  }
  absl::Status fits = commit.epoch == epoch_
                          ? CheckCommit(commit)
                          : Lost(absl::StrCat("commit of epoch ", commit.epoch, " in epoch ", epoch_));
  const std::vector<NodeId> path = fits.ok() ? MatchPath(commit.tokens) : std::vector<NodeId>();
  const bool reaches_root = path.size() == commit.tokens.size();
  if (fits.ok() && commit.new_root.has_value() && !(reaches_root && path.back() == *commit.new_root)) {
    fits = Lost(absl::StrCat("commit ", commit.commit_no, ": node ", *commit.new_root,
                             " is not at the end of the committed tokens"));
  }
  if (fits.ok() && is_head() && !is_medusa() && WindowIsFull(kv_.tokens().size() + commit.tokens.size())) {
    fits = Lost("the draft head's window is full and starts again");
  }
  if (!fits.ok()) {
    // The keys and values stay for the next Open.
    DropTree(&counters_->stale_nodes);
    lost_ = true;
    return fits;
  }

  ObserveScores(commit.tokens, path);
  SendGathered(commit.new_root);
  commit_no_ = commit.commit_no;
  committed_len_ = commit.committed_len;
  prefix_hash_ = commit.prefix_hash;
  said_exhausted_ = false;
  released_ = false;
  proposal_.clear();
  FollowConstraint(commit.tokens);
  SetBudget(commit.budget);
  if (has_engine()) {
    for (TokenId token : commit.tokens) sampler_->Append(token);
    TANDEM_RETURN_IF_ERROR(is_medusa()      ? AppendToMedusa(commit.tokens)
                           : gives_levels() ? AppendToBlockHead(commit.tokens)
                           : is_head()      ? AppendToHead(commit.tokens, path)
                                            : AppendCommitted(commit.tokens, path));
  }
  for (const auto& source : sources_) source->Observe(commit.tokens);

  const uint32_t children = reaches_root ? states_.at(path.back()).num_children : 0;
  std::unique_ptr<Draws> draws = reaches_root ? std::move(states_.at(path.back()).draws) : nullptr;
  for (NodeId id : path) Forget(id, &counters_->accepted_nodes);
  if (!reaches_root) {
    DropTree(&counters_->pruned_nodes);
  } else if (commit.new_root.has_value()) {
    root_draws_ = std::move(draws);
    RerootAt(path.back());
    root_children_ = children;
  } else {
    root_draws_ = std::move(draws);
    SalvageBelow(path.back());
  }
  RebuildQueues();
  if (gives_levels()) OfferFromLevels();
  if (is_head() && commit.features.has_value()) TANDEM_RETURN_IF_ERROR(OnFeatures(*commit.features));
  ProposeFromSources();
  Promote();
  FlushGrowth();
  return absl::OkStatus();
}

absl::Status DraftSession::AppendCommitted(absl::Span<const TokenId> tokens, absl::Span<const NodeId> path) {
  const uint32_t old_length = static_cast<uint32_t>(kv_.tokens().size());
  if (WindowIsFull(old_length + tokens.size())) {
    LoseTreeKv();
    TokenIds all(kv_.tokens().begin(), kv_.tokens().end());
    all.insert(all.end(), tokens.begin(), tokens.end());
    return StartWindow(all);
  }
  kv_.Append(tokens);
  if (!parked_) TANDEM_RETURN_IF_ERROR(ReserveWindow());
  absl::InlinedVector<KvCopy, 8> copies;
  for (NodeId id : path) {
    const NodeState& state = states_.at(id);
    if (!state.forwarded) break;
    copies.push_back(
        {.from = *state.slot, .to = kv_.CommittedSlot(old_length + static_cast<uint32_t>(copies.size()))});
  }
  root_ready_ = copies.size() == tokens.size();
  if (copies.empty()) return absl::OkStatus();
  assert(kv_.num_computed() == old_length);
  TANDEM_RETURN_IF_ERROR(model_->engine->CopyKv(copies));
  kv_.MarkComputed(old_length + static_cast<uint32_t>(copies.size()));
  return absl::OkStatus();
}

// The verifier's mirror has the same node and does the same.
void DraftSession::RerootAt(NodeId new_root) {
  tree_.Reroot(new_root);
  states_.EraseIf([this](NodeId id, NodeState& state) {
    if (tree_.Find(id) != nullptr) return false;
    if (state.slot.has_value()) kv_.FreeScratch(*state.slot);
    ++counters_->pruned_nodes;
    return true;
  });
  TakeHeldBack();
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return candidate.parent != new_root && (candidate.parent == 0 || tree_.Find(candidate.parent) == nullptr);
  });
  for (Candidate& candidate : candidates_) {
    if (candidate.parent == new_root) candidate.parent = 0;
  }
}

// The verifier committed a token that is a node here, before it received the node: for the verifier the root
// is fresh, and the old ids are invalid. The nodes below are sent again under new ids, within the budget.
void DraftSession::SalvageBelow(NodeId new_root) {
  CandidateTree old = tree_;
  old.Reroot(new_root);
  for (const TreeNode& node : tree_.nodes()) {
    if (old.Find(node.id) == nullptr) Forget(node.id, &counters_->pruned_nodes);
  }
  std::vector<TreeNode> order(old.nodes().begin(), old.nodes().end());
  // Stable: a parent with its child's path score stays in front of it.
  absl::c_stable_sort(order, [](const auto& a, const auto& b) { return a.path_score > b.path_score; });

  std::vector<Candidate> loose = std::exchange(candidates_, {});
  absl::c_move(std::exchange(held_back_, {}), std::back_inserter(loose));
  std::erase_if(loose, [](const Candidate& candidate) { return candidate.parent == 0; });
  tree_.Clear();
  root_children_ = 0;
  if (root_draws_ != nullptr) root_draws_->sent = false;
  // Where the children of an old parent go now.
  absl::flat_hash_map<NodeId, NodeId> new_parents = {{new_root, 0}};
  for (const TreeNode& node : order) {
    const auto parent = new_parents.find(node.parent == 0 ? new_root : node.parent);
    if (parent == new_parents.end() || node.depth > limits_.depth || tree_.size() >= limits_.nodes ||
        NumChildren(parent->second) >= Branching()) {
      loose.push_back({.parent = node.parent == 0 ? new_root : node.parent,
                       .token = node.token,
                       .score = node.score,
                       .draw = states_.at(node.id).draw});
      Forget(node.id, &counters_->stale_nodes);
      continue;
    }
    const TreeNode again = AddNode(parent->second, node.token, node.score, states_.at(node.id).draw);
    NodeState& state = states_.at(node.id);
    states_.at(again.id).draws = std::move(state.draws);
    if (states_.at(again.id).draws != nullptr) states_.at(again.id).draws->sent = false;
    states_.at(again.id).forwarded = state.forwarded;
    states_.at(again.id).output = std::move(state.output);
    states_.at(again.id).slot = std::exchange(state.slot, std::nullopt);
    new_parents.emplace(node.id, again.id);
    Forget(node.id, &counters_->stale_nodes);
  }
  for (Candidate& candidate : loose) {
    const auto parent = new_parents.find(candidate.parent);
    if (parent == new_parents.end()) continue;
    candidate.parent = parent->second;
    // Nodes that have lost their keys and values are forwarded again, and then find their children again.
    if (!(candidate.parent == 0 ? root_ready_ : states_.at(candidate.parent).forwarded)) continue;
    candidates_.push_back(candidate);
  }
}

void DraftSession::Forget(NodeId id, uint64_t* fate) {
  const NodeState* const state = states_.Find(id);
  if (state == nullptr) return;
  if (state->slot.has_value()) kv_.FreeScratch(*state->slot);
  states_.Erase(id);
  ++*fate;
}

void DraftSession::DropTree(uint64_t* fate) {
  states_.EraseIf([&](NodeId, const NodeState& state) {
    if (state.slot.has_value()) kv_.FreeScratch(*state.slot);
    ++*fate;
    return true;
  });
  tree_.Clear();
  announced_.clear();
  root_children_ = 0;
  root_draws_.reset();
  candidates_.clear();
  held_back_.clear();
  waiting_.clear();
  proposal_.clear();
}

// The nodes stay, since the verifier has them, but have to be forwarded again.
void DraftSession::LoseTreeKv() {
  states_.ForEach([this](NodeId, NodeState& state) {
    if (state.slot.has_value()) kv_.FreeScratch(*state.slot);
    state.slot.reset();
    state.forwarded = false;
  });
  candidates_.clear();
  held_back_.clear();
  waiting_.clear();
  root_ready_ = false;
}

}  // namespace tandem
