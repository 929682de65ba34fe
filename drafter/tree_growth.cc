// How a DraftSession's tree grows: rows in, candidates out, nodes to send.

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drafter/draft_session.h"

namespace tandem {
namespace {

// So few committed tokens without keys and values count as part of growth, not as a prompt: a round's commit.
constexpr uint32_t kGlueTokens = 16;

}  // namespace

void StepBatch::Clear() {
  rows_.clear();
  tails_.clear();
  num_logits_ = 0;
}

void StepBatch::Add(TokenId token, const RowContext& context, float* logits) {
  rows_.push_back({.token = token, .context = context, .logits = logits});
}

absl::Span<const SlotId> StepBatch::KeepTail(std::vector<SlotId> tail) {
  tails_.push_back(std::move(tail));
  return tails_.back();
}

float* StepBatch::NewLogits(int32_t vocab_size) {
  if (num_logits_ == logits_.size()) logits_.emplace_back();
  std::vector<float>& logits = logits_[num_logits_++];
  logits.resize(static_cast<size_t>(vocab_size));
  return logits.data();
}

// For a heap whose front is the best; ties are broken so that every run grows the same tree.
bool DraftSession::IsWorse(const Candidate& a, const Candidate& b) {
  return std::tuple(a.path_score, b.parent, b.token) < std::tuple(b.path_score, a.parent, a.token);
}

uint32_t DraftSession::NumUncomputed() const {
  return static_cast<uint32_t>(kv_.tokens().size()) - kv_.num_computed();
}

bool DraftSession::NeedsPrefill() const {
  return !lost_ && !parked_ && NumUncomputed() > kGlueTokens;
}

uint32_t DraftSession::NumRowsWanted() const {
  if (NeedsPrefill()) return NumUncomputed();
  // In a pause even what the commits leave to compute can wait.
  if (parked_ || idle()) return 0;
  if (!root_ready_) return NumUncomputed();
  if (tree_.size() >= limits_.nodes) return 0;
  return std::min(expand_width_, num_waiting());
}

uint32_t& DraftSession::NumChildren(NodeId parent) {
  return parent == 0 ? root_children_ : states_.at(parent).num_children;
}

TreeNode DraftSession::AddNode(NodeId parent, TokenId token, float score) {
  const TreeNode node = tree_.Add(next_id_++, parent, token, score);
  states_.emplace(node.id, NodeState{});
  ++NumChildren(parent);
  ++counters_->sent_nodes;
  announced_.push_back(node);
  return node;
}

bool DraftSession::CanForward(const TreeNode& node) const {
  if (parked_) return false;
  if (node.depth >= limits_.depth || kv_.tokens().size() + node.depth > model_->context_length) return false;
  return node.parent == 0 || states_.at(node.parent).slot.has_value();
}

// Queues a node to be forwarded. Without a slot for it, it stays a leaf until the next commit frees some.
void DraftSession::Wait(const TreeNode& node) {
  std::optional<SlotId>& slot = states_.at(node.id).slot;
  if (!slot.has_value()) {
    absl::StatusOr<SlotId> allocated = kv_.AllocateScratch();
    if (!allocated.ok()) return;
    slot = *allocated;
  }
  const auto place = std::upper_bound(
      waiting_.begin(), waiting_.end(), node.path_score,
      [this](float path_score, NodeId id) { return path_score > tree_.Find(id)->path_score; });
  waiting_.insert(place, node.id);
}

// After a commit: path scores count from the new root, depths and the budget have changed.
void DraftSession::RebuildQueues() {
  for (Candidate& candidate : candidates_) {
    const TreeNode* parent = tree_.Find(candidate.parent);
    candidate.path_score = parent == nullptr ? candidate.score : parent->path_score * candidate.score;
  }
  std::make_heap(candidates_.begin(), candidates_.end(), IsWorse);
  waiting_.clear();
  for (const TreeNode& node : tree_.nodes()) {
    NodeState& state = states_.at(node.id);
    if (state.forwarded) continue;
    if (CanForward(node)) {
      Wait(node);
    } else if (state.slot.has_value()) {
      kv_.FreeScratch(*state.slot);
      state.slot.reset();
    }
  }
}

// Makes nodes of the best candidates, until as many nodes as one step takes wait in front of the next.
void DraftSession::Promote() {
  if (!root_ready_) return;
  while (tree_.size() < limits_.nodes && !candidates_.empty()) {
    if (waiting_.size() >= expand_width_ &&
        tree_.Find(waiting_[expand_width_ - 1])->path_score >= candidates_.front().path_score) {
      return;
    }
    std::pop_heap(candidates_.begin(), candidates_.end(), IsWorse);
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    const TreeNode* parent = tree_.Find(best.parent);
    const uint32_t depth = parent == nullptr ? 1 : parent->depth + 1;
    if (depth > limits_.depth || NumChildren(best.parent) >= limits_.branching) {
      held_back_.push_back(best);
      continue;
    }
    const TreeNode node = AddNode(best.parent, best.token, best.score);
    if (CanForward(node)) Wait(node);
  }
}

// Puts what was announced into messages. As a waiting node always yields a candidate, the budget can only be
// used up by sending a node, and so the last message can say it. The exception is a commit whose surviving
// nodes leave nothing to add: their number reaches the limit, or its budget is shallower than the one before.
// Nothing is sent then, and the verifier can tell as much from its mirror.
void DraftSession::FlushGrowth() {
  const bool exhausted =
      root_ready_ && (tree_.size() >= limits_.nodes || (candidates_.empty() && waiting_.empty()));
  for (size_t first = 0; first < announced_.size(); first += kMaxGrowNodes) {
    const size_t end = std::min(announced_.size(), first + kMaxGrowNodes);
    Grow grow{.epoch = epoch_,
              .seen_commit = commit_no_,
              .prefix_hash = prefix_hash_,
              .first_id = announced_[first].id,
              .exhausted = exhausted && end == announced_.size()};
    for (size_t i = first; i < end; ++i) {
      assert(announced_[i].id == grow.first_id + (i - first));
      grow.parents.push_back(announced_[i].parent);
      grow.tokens.push_back(announced_[i].token);
      grow.scores.push_back(announced_[i].score);
    }
    growth_.push_back(std::move(grow));
  }
  announced_.clear();
}

std::vector<Grow> DraftSession::TakeGrowth() {
  return std::exchange(growth_, {});
}

void DraftSession::AddRows(uint32_t max_rows, StepBatch* batch) {
  node_logits_.clear();
  root_logits_ = nullptr;
  computed_after_step_ = kv_.num_computed();
  if (root_ready_) {
    const uint32_t count = std::min(max_rows, NumRowsWanted());
    for (uint32_t i = 0; i < count; ++i) AddNodeRow(waiting_[i], batch);
    return;
  }
  const uint32_t length = static_cast<uint32_t>(kv_.tokens().size());
  computed_after_step_ += std::min(max_rows, NumUncomputed());
  for (uint32_t position = kv_.num_computed(); position < computed_after_step_; ++position) {
    float* logits = nullptr;
    if (position + 1 == length) root_logits_ = logits = batch->NewLogits(model_->engine->config().vocab_size);
    batch->Add(kv_.tokens()[position], kv_.CommittedRow(position), logits);
  }
}

void DraftSession::AddNodeRow(NodeId id, StepBatch* batch) {
  std::vector<SlotId> tail;
  for (NodeId ancestor : tree_.Path(id)) tail.push_back(*states_.at(ancestor).slot);
  float* logits = batch->NewLogits(model_->engine->config().vocab_size);
  node_logits_.emplace_back(id, logits);
  batch->Add(tree_.Find(id)->token,
             {.blocks = kv_.blocks(),
              .num_committed = static_cast<uint32_t>(kv_.tokens().size()),
              .tail = batch->KeepTail(std::move(tail))},
             logits);
}

absl::Status DraftSession::OnStep() {
  counters_->prefill_tokens += computed_after_step_ - kv_.num_computed();
  if (computed_after_step_ > kv_.num_computed()) kv_.MarkComputed(computed_after_step_);
  if (root_logits_ != nullptr) {
    root_ready_ = true;
    TANDEM_RETURN_IF_ERROR(AddCandidates(0, root_logits_));
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(node_logits_.size()));
  for (const auto& [id, logits] : node_logits_) {
    states_.at(id).forwarded = true;
    TANDEM_RETURN_IF_ERROR(AddCandidates(id, logits));
  }
  root_logits_ = nullptr;
  node_logits_.clear();
  Promote();
  FlushGrowth();
  return absl::OkStatus();
}

absl::Status DraftSession::AddCandidates(NodeId parent, float* logits) {
  const int32_t vocab_size = model_->engine->config().vocab_size;
  const TreeNode* above = tree_.Find(parent);
  const uint32_t position = committed_len_ + (above == nullptr ? 0 : above->depth);
  const std::vector<TokenProbability> top =
      sampler_->Guess(absl::MakeSpan(logits, static_cast<size_t>(vocab_size)), position, limits_.branching);
  if (top.empty()) {
    return absl::InternalError(
        absl::StrCat("draft model ", model_->name, " computed logits that are not finite"));
  }
  for (const TokenProbability& child : top) {
    // A node that is forwarded for the second time, after its keys and values were lost, has children
    // already.
    if (NumChildren(parent) > 0 && tree_.FindChild(parent, child.token) != nullptr) continue;
    candidates_.push_back({.parent = parent,
                           .token = child.token,
                           .score = child.probability,
                           .path_score = (above == nullptr ? 1.0f : above->path_score) * child.probability});
    std::push_heap(candidates_.begin(), candidates_.end(), IsWorse);
  }
  return absl::OkStatus();
}

}  // namespace tandem
