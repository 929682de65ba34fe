// How a DraftSession's tree grows: rows in, candidates out, nodes to send.

#include <algorithm>
#include <cassert>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/node_index.h"
#include "common/base/status_macros.h"
#include "common/speculation/rules/draft_distribution.h"
#include "common/speculation/rules/verification_rule.h"
#include "drafter/drafting/draft_session.h"

namespace tandem {
namespace {

// So few committed tokens without keys and values count as part of growth, not as a prompt: a round's commit.
constexpr uint32_t kGlueTokens = 16;
// Nodes drafted ahead that make a message.
constexpr size_t kGatheredNodes = 16;

}  // namespace

// For a heap whose front is the best; ties are broken so that every run grows the same tree.
bool DraftSession::IsWorse(const Candidate& a, const Candidate& b) {
  if (a.value != b.value) return a.value < b.value;
  // Among scores with the same calibrated value, the raw score decides.
  return std::tuple(a.merged_score(), b.parent, b.draw, b.token) <
         std::tuple(b.merged_score(), a.parent, a.draw, a.token);
}

uint32_t DraftSession::NumUncomputed() const {
  return static_cast<uint32_t>(kv_.tokens().size()) - kv_.num_computed();
}

uint32_t DraftSession::NumComputable() const {
  return is_head() ? NumWithFeatures() : NumUncomputed();
}

// Where a root is ready before its row has been computed, as a draft head's, nodes wait for that row.
bool DraftSession::ComputesRoot() const {
  return NumComputable() > 0 && NumComputable() == NumUncomputed();
}

bool DraftSession::NeedsPrefill() const {
  return !lost_ && !parked_ && NumComputable() > kGlueTokens;
}

uint32_t DraftSession::NumRowsWanted() const {
  if (NeedsPrefill()) return NumComputable();
  // In a pause even what the commits leave to compute can wait.
  if (parked_ || idle()) return 0;
  if (!root_ready_ || ComputesRoot() || tree_.size() >= limits_.nodes) return NumComputable();
  return NumComputable() + std::min(StepNodes(), num_waiting());
}

float DraftSession::BestValue() const {
  return OwesFirstNodes() || waiting_.empty() ? 1.0f : ValueOf(waiting_.front());
}

DraftSession::Above DraftSession::AboveChildrenOf(NodeId parent) const {
  const TreeNode* const node = tree_.Find(parent);
  return {.value = ValueOf(parent), .depth = node == nullptr ? 1 : node->depth + 1};
}

// Of a child with this score. What is drawn must not depend on what was drawn before, and EAGLE-2 goes by the
// scores as they are.
float DraftSession::ValueBelow(const Above& above, float score) const {
  if (model_->calibration == nullptr || sampled_ || limits_.shape == TreeShape::kEagle2) {
    return above.value * score;
  }
  return above.value * static_cast<float>(model_->calibration->Calibrated(temperature_, above.depth, score));
}

// A commit's tokens say of every known child of the nodes along them whether it was right, sent or not.
void DraftSession::ObserveScores(absl::Span<const TokenId> tokens, absl::Span<const NodeId> path) {
  if (model_->calibration == nullptr || sampled_) return;
  NodeId parent = 0;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (parent == 0 ? !root_ready_ : !states_.at(parent).forwarded) break;
    const auto observe = [&](NodeId above, TokenId token, float score) {
      if (above != parent) return;
      model_->calibration->Observe(temperature_, i + 1, score, token == tokens[i]);
    };
    for (const TreeNode& node : tree_.nodes()) observe(node.parent, node.token, node.score);
    for (const std::vector<Candidate>* list : {&candidates_, &held_back_}) {
      for (const Candidate& candidate : *list) {
        observe(candidate.parent, candidate.token, candidate.merged_score());
      }
    }
    if (i >= path.size()) break;
    parent = path[i];
  }
}

uint32_t& DraftSession::NumChildren(NodeId parent) {
  return parent == 0 ? root_children_ : states_.at(parent).num_children;
}

TreeNode DraftSession::AddNode(NodeId parent, TokenId token, float score, uint32_t draw) {
  const TreeNode node = tree_.Add(next_id_++, parent, token, score);
  const Above above = {.value = ValueOf(parent), .depth = node.depth};
  states_.Add(node.id, NodeState{.value = ValueBelow(above, score), .draw = draw});
  ++NumChildren(parent);
  ++counters_->sent_nodes;
  announced_.push_back(node);
  OfferBelow(node);
  return node;
}

bool DraftSession::CanForward(const TreeNode& node) const {
  if (!has_engine() || gives_levels() || parked_ || node.depth >= limits_.depth ||
      kv_.tokens().size() + node.depth > model_->context_length) {
    return false;
  }
  // A draft head reads what the row above has given.
  if (is_head()) return node.parent == 0 ? root_ready_ : states_.at(node.parent).forwarded;
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
  const auto place = std::upper_bound(waiting_.begin(), waiting_.end(), ValueOf(node.id),
                                      [this](float value, NodeId id) { return value > ValueOf(id); });
  waiting_.insert(place, node.id);
}

void DraftSession::RescoreCandidates() {
  for (Candidate& candidate : candidates_) {
    candidate.value = ValueBelow(candidate.parent, candidate.merged_score());
  }
  std::make_heap(candidates_.begin(), candidates_.end(), IsWorse);
}

// After a commit: values count from the new root, depths and the budget have changed.
void DraftSession::RebuildQueues() {
  for (const TreeNode& node : tree_.nodes()) {
    states_.at(node.id).value =
        ValueBelow(Above{.value = ValueOf(node.parent), .depth = node.depth}, node.score);
  }
  RescoreCandidates();
  waiting_.clear();
  for (const TreeNode& node : tree_.nodes()) {
    NodeState& state = states_.at(node.id);
    if (state.forwarded) continue;
    if (CanForward(node) && !IsLayerFull(node.depth)) {
      Wait(node);
    } else if (state.slot.has_value()) {
      kv_.FreeScratch(*state.slot);
      state.slot.reset();
    }
  }
}

// While a prompt is being computed, or the session is parked, what the sources propose is all there is, and
// goes out. A root that a commit has left to compute is a matter of one step, after which the model has its
// say too.
void DraftSession::Promote() {
  if ((!root_ready_ || ComputesRoot()) && !NeedsPrefill() && !parked_) return;
  // All of the tree may come from the root's row, so that what an older one gave does not fill it first.
  if (gives_levels() && NumComputable() > 0 && !NeedsPrefill()) return;
  if (limits_.shape == TreeShape::kEagle2 && has_engine()) {
    PromoteLayers();
  } else {
    PromoteBest();
  }
}

// Makes nodes of the best candidates, until as many nodes as one step takes wait in front of the next.
void DraftSession::PromoteBest() {
  while (tree_.size() < limits_.nodes) {
    if (DraftsAhead()) ReleaseHeldBack();
    if (candidates_.empty()) return;
    if (root_ready_ && waiting_.size() >= StepNodes() &&
        ValueOf(waiting_[StepNodes() - 1]) >= candidates_.front().value) {
      return;
    }
    std::pop_heap(candidates_.begin(), candidates_.end(), IsWorse);
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    PromoteOne(best);
  }
}

// Adds what was held back to the candidates, which are not a heap then.
void DraftSession::TakeHeldBack() {
  candidates_.insert(candidates_.end(), held_back_.begin(), held_back_.end());
  held_back_.clear();
}

// Nodes for which the verified tree has no room may be where its round ends.
void DraftSession::ReleaseHeldBack() {
  if (std::exchange(released_, true) || held_back_.empty()) return;
  TakeHeldBack();
  std::make_heap(candidates_.begin(), candidates_.end(), IsWorse);
}

// Makes a node of a candidate, unless the budget forbids it: then it is held back.
void DraftSession::PromoteOne(const Candidate& candidate) {
  const TreeNode* parent = tree_.Find(candidate.parent);
  const uint32_t depth = parent == nullptr ? 1 : parent->depth + 1;
  if (depth > limits_.depth || NumChildren(candidate.parent) >= Branching()) {
    held_back_.push_back(candidate);
    return;
  }
  const TreeNode node = AddNode(candidate.parent, candidate.token, candidate.merged_score(), candidate.draw);
  if (gives_levels()) OfferLevelBelow(node.id, node.depth);
  if (CanForward(node) && !IsLayerFull(node.depth)) Wait(node);
}

// EAGLE-2 expands no more than `branching` nodes of a level.
bool DraftSession::IsLayerFull(uint32_t depth) const {
  if (limits_.shape != TreeShape::kEagle2) return false;
  uint32_t expanded = 0;
  for (const TreeNode& node : tree_.nodes()) {
    if (node.depth != depth) continue;
    const bool waits = absl::c_linear_search(waiting_, node.id);
    if (waits || states_.at(node.id).forwarded) ++expanded;
  }
  return expanded >= limits_.branching;
}

// EAGLE-2 (Li et al., 2024): of each level the `branching` best nodes by path score are expanded, one level
// after the other; then the best of all candidates are taken up to the budget. The verifier, which holds them
// all, reranks once more when it chooses what to verify. Levels may use up the budget before the deepest one.
void DraftSession::PromoteLayers() {
  if (!waiting_.empty() || !root_ready_) return;  // A level is under way.
  uint32_t deepest = limits_.depth;
  if (gives_levels()) deepest = std::min(deepest, static_cast<uint32_t>(levels_.size()));
  for (uint32_t depth = 1; depth < deepest && tree_.size() < limits_.nodes; ++depth) {
    if (IsLayerFull(depth)) continue;
    const auto level_begin =
        std::partition(candidates_.begin(), candidates_.end(), [this, depth](const Candidate& candidate) {
          const TreeNode* parent = tree_.Find(candidate.parent);
          return (parent == nullptr ? 1 : parent->depth + 1) != depth;
        });
    if (level_begin == candidates_.end()) continue;  // All are where they were, so still a heap.
    std::vector<Candidate> level(level_begin, candidates_.end());
    candidates_.erase(level_begin, candidates_.end());
    absl::c_sort(level, [](const Candidate& a, const Candidate& b) { return IsWorse(b, a); });
    std::make_heap(candidates_.begin(), candidates_.end(), IsWorse);
    size_t taken = 0;
    while (taken < level.size() && tree_.size() < limits_.nodes && !IsLayerFull(depth)) {
      PromoteOne(level[taken++]);
    }
    candidates_.insert(candidates_.end(), level.begin() + static_cast<ptrdiff_t>(taken), level.end());
    std::make_heap(candidates_.begin(), candidates_.end(), IsWorse);
    if (!waiting_.empty()) return;
  }
  PromoteBest();
}

// What the sources make of the text so far, in place of what they made of it before.
void DraftSession::ProposeFromSources() {
  if (sources_.empty() || sampled_) return;
  proposal_.clear();
  states_.ForEach([](NodeId, NodeState& state) { state.proposed = kNotProposed; });
  for (std::vector<Candidate>* list : {&candidates_, &held_back_}) {
    std::erase_if(*list, [](const Candidate& candidate) { return candidate.score == 0.0f; });
    for (Candidate& candidate : *list) candidate.source_score = 0.0f;
  }
  RescoreCandidates();
  if (limits_.nodes == 0) return;
  const ProposalLimits limits{.depth = limits_.depth, .nodes = limits_.nodes, .branching = limits_.branching};
  std::vector<std::vector<ProposedNode>> proposals;
  for (const auto& source : sources_) proposals.push_back(source->Propose(limits));
  proposal_ = proposals.size() == 1 ? std::move(proposals[0]) : MergeProposals(proposals, limits);
  OfferProposed(0, kRootNode);
}

// The proposal's children of `proposed`, which is `parent` in the tree: those that are nodes already are gone
// into, the others become candidates.
void DraftSession::OfferProposed(NodeId parent, uint32_t proposed) {
  TokenProbabilities children;
  for (uint32_t i = 0; i < proposal_.size(); ++i) {
    if (proposal_[i].parent != proposed) continue;
    const TreeNode* node = tree_.FindChild(parent, proposal_[i].token);
    if (node == nullptr && !MayCome(parent, proposal_[i].token)) {
      ++counters_->forbidden_candidates;
    } else if (node == nullptr) {
      children.push_back({.token = proposal_[i].token, .probability = proposal_[i].score});
    } else {
      states_.at(node->id).proposed = i;
      OfferProposed(node->id, i);
    }
  }
  if (!children.empty()) OfferChildren(parent, children, &Candidate::source_score);
}

// If the sources proposed the new node too, their proposal continues below it.
void DraftSession::OfferBelow(const TreeNode& node) {
  if (proposal_.empty()) return;
  const uint32_t above = node.parent == 0 ? kRootNode : states_.at(node.parent).proposed;
  if (above == kNotProposed) return;
  const auto same = absl::c_find_if(proposal_, [&](const ProposedNode& proposed) {
    return proposed.parent == above && proposed.token == node.token;
  });
  if (same == proposal_.end()) return;
  const auto index = static_cast<uint32_t>(same - proposal_.begin());
  states_.at(node.id).proposed = index;
  OfferProposed(node.id, index);
}

// Nodes that are drafted ahead are needed only when the round ends, and a message costs both sides more than
// its nodes.
bool DraftSession::MayGather() const {
  const bool all_ahead =
      tree_.size() >= announced_.size() && tree_.size() - announced_.size() >= limits_.verified;
  return all_ahead && announced_.size() < kGatheredNodes && predictions_.empty() && NumRowsWanted() > 0;
}

// Before a commit is applied: sends the collected nodes as if they had crossed the commit, if some of them
// are below the new root and the verifier has that root. Otherwise they are not needed, because SalvageBelow
// gives new ids.
void DraftSession::SendGathered(std::optional<NodeId> new_root) {
  const auto survives = [&](const TreeNode& node) {
    return absl::c_linear_search(tree_.Path(node.id), *new_root);
  };
  if (new_root.has_value() && absl::c_any_of(announced_, survives)) PutIntoMessages(/*exhausted=*/false);
  announced_.clear();
}

// Puts what was announced into messages. The last one before the next commit says that it is; when there is
// nothing left to send with it, as where a source knows nothing or a model agrees with one, it is empty.
void DraftSession::FlushGrowth() {
  const bool exhausted =
      limits_.nodes > 0 && (tree_.size() >= limits_.nodes ||
                            (root_ready_ && NumUncomputed() == 0 && candidates_.empty() && waiting_.empty()));
  if (!exhausted && MayGather()) return;
  const bool says_exhausted = announced_.empty() && exhausted && !said_exhausted_ && !lost_;
  const bool only_predicts = announced_.empty() && !predictions_.empty() && !lost_;
  if (says_exhausted || only_predicts) {
    growth_.push_back({.epoch = epoch_,
                       .seen_commit = commit_no_,
                       .prefix_hash = prefix_hash_,
                       .first_id = next_id_,
                       .exhausted = exhausted});
  }
  const size_t first_message = growth_.size() - (says_exhausted || only_predicts ? 1 : 0);
  said_exhausted_ = said_exhausted_ || exhausted;
  PutIntoMessages(exhausted);
  // A step forwards no more nodes than one message may tell of.
  if (first_message < growth_.size()) growth_[first_message].predictions = std::exchange(predictions_, {});
}

void DraftSession::PutIntoMessages(bool exhausted) {
  for (size_t first = 0; first < announced_.size(); first += kMaxGrowNodes) {
    const size_t end = std::min(announced_.size(), first + kMaxGrowNodes);
    Grow grow{.epoch = epoch_,
              .seen_commit = commit_no_,
              .prefix_hash = prefix_hash_,
              .first_id = announced_[first].id,
              .exhausted = exhausted && end == announced_.size()};
    grow.parents.reserve(end - first);
    grow.tokens.reserve(end - first);
    grow.scores.reserve(end - first);
    for (size_t i = first; i < end; ++i) {
      assert(announced_[i].id == grow.first_id + (i - first));
      grow.parents.push_back(announced_[i].parent);
      grow.tokens.push_back(announced_[i].token);
      grow.scores.push_back(announced_[i].score);
      if (sampled_) AddDistribution(announced_[i].parent, &grow);
    }
    growth_.push_back(std::move(grow));
  }
  announced_.clear();
}

void DraftSession::TakeGrowth(std::vector<Grow>* growth) {
  growth->clear();
  growth->swap(growth_);
}

void DraftSession::AddRows(uint32_t max_rows, StepBatch* batch) {
  node_rows_.clear();
  root_logits_ = nullptr;
  root_request_ = nullptr;
  const uint32_t wanted = std::min(max_rows, NumRowsWanted());
  const uint32_t num_committed = std::min(wanted, NumComputable());
  const uint32_t length = static_cast<uint32_t>(kv_.tokens().size());
  computed_after_step_ = kv_.num_computed() + num_committed;
  for (uint32_t position = kv_.num_computed(); position < computed_after_step_; ++position) {
    float* logits = nullptr;
    if (position + 1 == length) {
      root_logits_ = logits = batch->NewLogits(LogitsRoom(*model_, bridge_));
      if (is_head() && !gives_levels()) root_request_ = AskForOutput(batch);
    }
    batch->Add(ToDraft(kv_.tokens()[position]), kv_.CommittedRow(position), logits,
               logits == nullptr ? nullptr : root_request_,
               is_head() ? ReadTarget(window_start_ + position - 1, batch) : nullptr);
  }
  if (!root_ready_ || root_logits_ != nullptr) return;
  for (uint32_t i = 0; i < wanted - num_committed && i < waiting_.size(); ++i) {
    AddNodeRow(waiting_[i], batch);
  }
}

void DraftSession::AddNodeRow(NodeId id, StepBatch* batch) {
  const TreeNode& node = *tree_.Find(id);
  const absl::Span<SlotId> tail = batch->NewTail(node.depth);
  const TreeNode* ancestor = &node;
  for (auto slot = tail.rbegin(); slot != tail.rend(); ++slot, ancestor = tree_.Find(ancestor->parent)) {
    *slot = *states_.at(ancestor->id).slot;
  }
  float* logits = batch->NewLogits(LogitsRoom(*model_, bridge_));
  const FeatureRequest* const state = is_head() ? AskForOutput(batch)
                                      : predicts_
                                          ? batch->NewStateRequest(model_->engine->config().hidden_size)
                                          : nullptr;
  node_rows_.push_back({.id = id, .logits = logits, .state = state});
  batch->Add(
      ToDraft(node.token),
      {.blocks = kv_.blocks(), .num_committed = static_cast<uint32_t>(kv_.tokens().size()), .tail = tail},
      logits, state, is_head() ? ReadOutputAbove(node.parent, batch) : nullptr);
}

absl::Status DraftSession::OnStep() {
  TANDEM_RETURN_IF_ERROR(bad_features_);
  counters_->prefill_tokens += computed_after_step_ - kv_.num_computed();
  if (computed_after_step_ > kv_.num_computed()) kv_.MarkComputed(computed_after_step_);
  if (is_head()) features_->DropBefore(NextFeature());
  if (root_logits_ != nullptr && gives_levels()) {
    TANDEM_RETURN_IF_ERROR(TakeLevels());
  } else if (root_logits_ != nullptr) {
    if (is_head()) TakeRootOutput();
    root_ready_ = true;
    TANDEM_RETURN_IF_ERROR(AddCandidates(0, root_logits_));
    if (is_head()) WaitBelow(0);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(node_rows_.size()));
  for (const NodeRow& row : node_rows_) {
    states_.at(row.id).forwarded = true;
    TANDEM_RETURN_IF_ERROR(AddCandidates(row.id, row.logits));
    if (is_head()) {
      const auto size = static_cast<size_t>(model_->engine->config().hidden_size);
      states_.at(row.id).output.assign(row.state->states, row.state->states + size);
      WaitBelow(row.id);
      continue;
    }
    if (row.state == nullptr) continue;
    const absl::Span<const float> state(row.state->states,
                                        static_cast<size_t>(model_->engine->config().hidden_size));
    predictions_.push_back({.node = row.id, .acceptance = model_->stop_head->Acceptance(state)});
  }
  root_logits_ = nullptr;
  node_rows_.clear();
  Promote();
  FlushGrowth();
  return absl::OkStatus();
}

absl::Status DraftSession::AddCandidates(NodeId parent, float* logits) {
  const absl::Span<float> row = TargetLogits(*model_, bridge_, logits);
  const TreeNode* above = tree_.Find(parent);
  const uint32_t position = committed_len_ + (above == nullptr ? 0 : above->depth);
  if (sampled_) {
    std::unique_ptr<Draws>& draws = DrawsBelow(parent);
    // What has been drawn stays drawn, even if the model sees another window by now.
    if (draws == nullptr) {
      if (!MaskBelow(parent, row)) return absl::OkStatus();
      draws = DrawChildren(parent, sampler_->MostLikely(row, position, kSampledTokens));
    }
    if (draws == nullptr) return NothingToGuess();
    OfferChildren(parent, draws->children, &Candidate::score);
    return absl::OkStatus();
  }
  if (!MaskBelow(parent, row)) return absl::OkStatus();
  const TokenProbabilities top =
      sampler_->Guess(row, position, std::max(limits_.branching, limits_.ahead_branching));
  if (top.empty()) return NothingToGuess();
  OfferChildren(parent, top, &Candidate::score);
  return absl::OkStatus();
}

// A bias may ban all that a constraint allows; without one the model is broken.
absl::Status DraftSession::NothingToGuess() const {
  if (constraint_ != nullptr) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("draft model ", model_->name, " computed logits that are not finite"));
}

std::unique_ptr<DraftSession::Draws>& DraftSession::DrawsBelow(NodeId parent) {
  return parent == 0 ? root_draws_ : states_.at(parent).draws;
}

// A child's score is its probability of being needed and right, as estimated before it is drawn: the largest
// remaining probability, given that none of its elder siblings is right. Scores never increase, so that
// siblings become nodes in order.
std::unique_ptr<DraftSession::Draws> DraftSession::DrawChildren(
    NodeId parent, absl::Span<const TokenProbability> most_likely) const {
  auto draws = std::make_unique<Draws>();
  for (const TokenProbability& token : most_likely) {
    draws->distribution.tokens.push_back(token.token);
    draws->distribution.probabilities.push_back(token.probability);
  }
  if (draws->distribution.tokens.empty()) return nullptr;
  uint64_t text = prefix_hash_;
  for (NodeId id : tree_.Path(parent)) text = ExtendPrefixHash(text, tree_.Find(id)->token);
  RemainingDraft left(&draws->distribution);
  double reached = 1.0;
  float score = 1.0f;
  for (uint32_t i = 0; i < limits_.branching && !left.empty(); ++i) {
    const double expected = left.LargestProbability();
    score = std::clamp(static_cast<float>(reached * expected), std::numeric_limits<float>::min(), score);
    reached *= 1.0 - expected;
    const PhiloxCounter words =
        Philox4x32({static_cast<uint32_t>(text), static_cast<uint32_t>(text >> 32), i, 0}, draw_key_);
    const TokenId token = left.Draw(UniformFromBits(uint64_t{words[0]} << 32 | words[1]));
    left.Remove(token);
    draws->children.push_back({.token = token, .probability = score});
  }
  return draws;
}

void DraftSession::AddDistribution(NodeId parent, Grow* grow) {
  Draws& draws = *DrawsBelow(parent);
  if (std::exchange(draws.sent, true)) return;
  grow->distributions.push_back(draws.distribution);
  grow->distributions.back().parent = parent;
}

// Makes candidates of guesses of what comes after `parent`. What is a node already stays as it is: a source
// proposed it, or the parent is forwarded for the second time, after its keys and values were lost. With
// sources, a guess that is a candidate already is the same one.
void DraftSession::OfferChildren(NodeId parent, absl::Span<const TokenProbability> children,
                                 float Candidate::*score_of) {
  absl::InlinedVector<Candidate, 8> known;
  if (!sources_.empty()) {
    for (std::vector<Candidate>* list : {&candidates_, &held_back_}) {
      const auto others = std::partition(list->begin(), list->end(),
                                         [&](const Candidate& one) { return one.parent != parent; });
      known.insert(known.end(), others, list->end());
      list->erase(others, list->end());
    }
  }
  const bool has_nodes = NumChildren(parent) > 0;
  for (const TokenProbability& child : children) {
    if (has_nodes && tree_.FindChild(parent, child.token) != nullptr) continue;
    const auto same =
        absl::c_find_if(known, [&](const Candidate& candidate) { return candidate.token == child.token; });
    if (same != known.end()) {
      (*same).*score_of = child.probability;
    } else {
      known.push_back({.parent = parent, .token = child.token});
      known.back().*score_of = child.probability;
      if (sampled_) known.back().draw = static_cast<uint32_t>(&child - children.data());
    }
  }
  const Above above = AboveChildrenOf(parent);
  for (Candidate& candidate : known) candidate.value = ValueBelow(above, candidate.merged_score());
  if (!sources_.empty()) {
    candidates_.insert(candidates_.end(), known.begin(), known.end());
    std::make_heap(candidates_.begin(), candidates_.end(), IsWorse);
    return;
  }
  for (const Candidate& candidate : known) {
    candidates_.push_back(candidate);
    std::push_heap(candidates_.begin(), candidates_.end(), IsWorse);
  }
}

}  // namespace tandem
