// How a DraftSession drafts with Medusa and DFlash heads: one row, whose logits are for every level of the
// tree.

#include <algorithm>
#include <cassert>
#include <memory>

#include "absl/algorithm/container.h"
#include "common/base/status_macros.h"
#include "drafter/drafting/draft_session.h"

namespace tandem {

// What the last row gave for positions that have not been committed still holds.
void DraftSession::DropLevels(size_t num_tokens) {
  const auto drop = [num_tokens](auto& levels) {
    levels.erase(levels.begin(),
                 levels.begin() + static_cast<ptrdiff_t>(std::min(num_tokens, levels.size())));
  };
  drop(levels_);
  drop(level_logits_);
}

// Only rows of the target's states are kept, and they are computed when these come.
absl::Status DraftSession::AppendToBlockHead(absl::Span<const TokenId> tokens) {
  DropLevels(tokens.size());
  kv_.Append(tokens);
  if (!parked_) TANDEM_RETURN_IF_ERROR(ReserveWindow());
  root_ready_ = !parked_ && !levels_.empty();
  return absl::OkStatus();
}

// The window is the last of the tokens.
absl::Status DraftSession::AppendToMedusa(absl::Span<const TokenId> tokens) {
  DropLevels(tokens.size());
  // Of the texts before, no more is needed than how long they are.
  const auto passed = static_cast<uint32_t>(kv_.tokens().size() + tokens.size() - 1);
  window_start_ += passed;
  const bool was_parked = parked_;
  kv_ = SequenceKv(model_->pool, cache_salt_);
  kv_.Start(tokens.last(1));
  if (features_->end() <= NextFeature()) {
    features_->Restart(NextFeature());
  } else {
    features_->DropBefore(NextFeature());
  }
  if (was_parked) {
    kv_.Suspend();
  } else {
    TANDEM_RETURN_IF_ERROR(ReserveWindow());
  }
  root_ready_ = !parked_ && !levels_.empty();
  return absl::OkStatus();
}

// Reads what the root's row has given.
absl::Status DraftSession::TakeLevels() {
  const auto vocab_size = static_cast<size_t>(model_->engine->config().vocab_size);
  const auto num_positions = static_cast<uint32_t>(model_->engine->config().head->num_positions);
  levels_.clear();
  level_logits_.clear();
  const bool keeps_logits = awaits_constraint_ || constraint_ != nullptr || reads_token_before();
  for (uint32_t depth = 0; depth < num_positions; ++depth) {
    const absl::Span<float> logits = absl::MakeSpan(root_logits_ + depth * vocab_size, vocab_size);
    if (keeps_logits) level_logits_.emplace_back(logits.begin(), logits.end());
    levels_.push_back(sampled_ ? sampler_->MostLikely(logits, committed_len_ + depth, kSampledTokens)
                               : sampler_->Guess(logits, committed_len_ + depth, limits_.branching));
    if (levels_.back().empty()) TANDEM_RETURN_IF_ERROR(NothingToGuess());
  }
  root_ready_ = true;
  // Candidates that are not nodes yet are drawn again, from the better distribution.
  if (root_children_ == 0) root_draws_.reset();
  states_.ForEach([](NodeId, NodeState& state) {
    if (state.num_children == 0) state.draws.reset();
  });
  OfferFromLevels();
  return absl::OkStatus();
}

// Makes candidates below the root and all nodes, replacing the old candidates. Existing nodes stay.
void DraftSession::OfferFromLevels() {
  for (std::vector<Candidate>* list : {&candidates_, &held_back_}) {
    std::erase_if(*list, [](const Candidate& candidate) { return candidate.source_score == 0.0f; });
    for (Candidate& candidate : *list) candidate.score = 0.0f;
  }
  RescoreCandidates();
  states_.ForEach([](NodeId, NodeState& state) { state.forwarded = false; });
  if (!root_ready_) return;
  OfferLevelBelow(0, 0);
  std::vector<TreeNode> nodes(tree_.nodes().begin(), tree_.nodes().end());
  absl::c_stable_sort(nodes, [](const auto& a, const auto& b) { return a.path_score > b.path_score; });
  for (const TreeNode& node : nodes) OfferLevelBelow(node.id, node.depth);
}

bool DraftSession::reads_token_before() const {
  return model_->engine->config().head->block.markov_rank > 0;
}

// What comes below `parent`, from the row that all levels share.
TokenProbabilities DraftSession::LevelBelow(NodeId parent, uint32_t depth) {
  const bool depends = constraint_ != nullptr || reads_token_before();
  if (!depends || depth >= level_logits_.size()) return levels_[depth];
  std::vector<float> logits = level_logits_[depth];
  if (reads_token_before()) {
    const TokenId token = parent == 0 ? kv_.tokens().back() : tree_.Find(parent)->token;
    [[maybe_unused]] const absl::Status added = model_->engine->AddTokenBefore(token, absl::MakeSpan(logits));
    assert(added.ok());
  }
  if (!MaskBelow(parent, absl::MakeSpan(logits))) return {};
  return sampled_ ? sampler_->MostLikely(absl::MakeSpan(logits), committed_len_ + depth, kSampledTokens)
                  : sampler_->Guess(absl::MakeSpan(logits), committed_len_ + depth, limits_.branching);
}

// Makes candidates below a node of this depth. The tree ends after the last head.
void DraftSession::OfferLevelBelow(NodeId parent, uint32_t depth) {
  if (depth >= levels_.size() || depth >= limits_.depth) return;
  if (parent != 0) {
    if (IsLayerFull(depth)) return;
    states_.at(parent).forwarded = true;
  }
  if (!sampled_) return OfferChildren(parent, LevelBelow(parent, depth), &Candidate::score);
  std::unique_ptr<Draws>& draws = DrawsBelow(parent);
  if (draws == nullptr) draws = DrawChildren(parent, LevelBelow(parent, depth));
  if (draws == nullptr) return;  // Nothing may come there.
  OfferChildren(parent, draws->children, &Candidate::score);
}

}  // namespace tandem
