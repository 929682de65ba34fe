// How a DraftSession drafts with a head: the target's states in, rows that read them out.

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "drafter/drafting/draft_session.h"

namespace tandem {
namespace {

uint64_t RowBytesFor(const DraftModel& model) {
  const HeadConfig& head = *model.engine->config().head;
  return FeatureRowBytes(model.feature_type, head.num_states(),
                         static_cast<uint32_t>(head.target_hidden_size));
}

}  // namespace

uint32_t DraftSession::FeatureWindow() const {
  const uint64_t rows = model_->feature_window_bytes / RowBytesFor(*model_);
  return static_cast<uint32_t>(std::clamp<uint64_t>(rows, 1, UINT32_MAX));
}

std::optional<FeatureNeeds> DraftSession::feature_needs() const {
  if (!is_head()) return std::nullopt;
  const HeadConfig& head = *model_->engine->config().head;
  return FeatureNeeds{.layers = head.feature_layers,
                      .final_norm = head.feature_final_norm,
                      .type = model_->feature_type,
                      .first_position = features_->end(),
                      .window = FeatureWindow()};
}

std::optional<FeaturesUsed> DraftSession::TakeFeaturesUsed() {
  if (!is_head() || lost_ || parked_) return std::nullopt;
  // Often enough that a verifier nearby never waits, and seldom enough that few messages do.
  const uint32_t next = NextFeature();
  if (next < told_features_ + std::max(1u, FeatureWindow() / 4)) return std::nullopt;
  told_features_ = next;
  return FeaturesUsed{.epoch = epoch_, .position = next};
}

absl::Status DraftSession::OpenHeadWindow(const OpenSession& open) {
  const HeadConfig& head = *model_->engine->config().head;
  features_.emplace(head.num_states(), static_cast<uint32_t>(head.target_hidden_size), model_->feature_type,
                    FeatureWindow() * RowBytesFor(*model_));
  missed_features_ = false;
  const absl::Span<const TokenId> tokens = open.tokens;
  levels_.clear();
  if (is_medusa()) {
    const size_t before = std::max<size_t>(1, tokens.size() - 1);
    window_start_ = 0;
    return StartHeadWindow(tokens.first(before), tokens.subspan(before));
  }
  // Another target's states would give other rows.
  const uint64_t empty = HashCombine(open.target_fingerprint, kEmptyPrefixHash);
  // What has been computed can be gone on with where the text before the window is the same.
  if (!parked_ && window_start_ > 0 && tokens.size() > window_start_ &&
      !WindowIsFull(tokens.size() - window_start_) &&
      ExtendPrefixHash(empty, tokens.first(window_start_)) == text_before_window_) {
    const absl::Span<const TokenId> window = tokens.subspan(window_start_);
    const absl::Span<const TokenId> old = kv_.tokens();
    size_t common = 0;
    while (common + 1 < window.size() && common < old.size() && window[common] == old[common]) ++common;
    if (common > 0) {
      kv_.Truncate(static_cast<uint32_t>(common));
      kv_.Append(window.subspan(common));
      root_ready_ = false;
      features_->Restart(NextFeature());
      return ReserveWindow();
    }
  }
  const size_t first = WindowIsFull(tokens.size() - 1)
                           ? tokens.size() - (model_->context_length - model_->context_length / 4)
                           : 1;
  text_before_window_ = empty;
  window_start_ = 0;
  return StartHeadWindow(tokens.first(first), tokens.subspan(first));
}

// A window that begins behind `before`, which itself is the text from the old window's start on.
absl::Status DraftSession::StartHeadWindow(absl::Span<const TokenId> before,
                                           absl::Span<const TokenId> window) {
  root_ready_ = false;
  text_before_window_ = ExtendPrefixHash(text_before_window_, before);
  window_start_ += static_cast<uint32_t>(before.size());
  kv_ = SequenceKv(model_->pool, HashCombine(cache_salt_, text_before_window_));
  if (!window.empty()) kv_.Start(window);
  parked_ = false;
  if (features_->end() > features_->begin()) {
    features_->DropBefore(NextFeature());
  } else {
    features_->Restart(NextFeature());
  }
  return ReserveWindow();
}

// The position whose states the first row that has not been computed reads.
uint32_t DraftSession::NextFeature() const {
  return window_start_ + kv_.num_computed() - 1;
}

uint32_t DraftSession::NumWithFeatures() const {
  const uint32_t next = NextFeature();
  if (!features_.has_value() || features_->begin() > next || features_->end() <= next) return 0;
  return std::min(NumUncomputed(), features_->end() - next);
}

absl::Status DraftSession::OnFeatures(const Features& features) {
  if (!is_head()) {
    return absl::InvalidArgumentError(
        absl::StrCat("features: draft model ", model_->name, " reads no features, expected none"));
  }
  if (lost_ || parked_ || features.epoch != epoch_) {
    ++counters_->ignored_features;
    missed_features_ = missed_features_ || parked_;
    return absl::OkStatus();
  }
  counters_->feature_bytes += features.states.size();
  const uint32_t expected = features_->end();
  // The root's states are known once there is a token behind it.
  if (absl::Status added = features_->Add(features, committed_len_ - 1); absl::IsResourceExhausted(added)) {
    DropTree(&counters_->stale_nodes);
    lost_ = true;
    return absl::AbortedError(added.message());
  } else if (!added.ok()) {
    return added;
  }
  return features_->begin() > expected ? SkipToFeatures() : absl::OkStatus();
}

// The verifier has no states from before: the window begins behind them.
absl::Status DraftSession::SkipToFeatures() {
  const TokenIds tokens(kv_.tokens().begin(), kv_.tokens().end());
  const uint32_t skipped = features_->begin() + 1 - window_start_;
  assert(skipped < tokens.size());
  LoseTreeKv();
  return StartHeadWindow(absl::MakeConstSpan(tokens).first(skipped),
                         absl::MakeConstSpan(tokens).subspan(skipped));
}

// The accepted nodes' rows stand in for their own until the target's states come.
absl::Status DraftSession::AppendToHead(absl::Span<const TokenId> tokens, absl::Span<const NodeId> path) {
  const auto old_length = static_cast<uint32_t>(kv_.tokens().size());
  kv_.Append(tokens);
  if (!parked_) TANDEM_RETURN_IF_ERROR(ReserveWindow());
  std::vector<KvCopy> copies;
  for (NodeId id : path) {
    const NodeState& state = states_.at(id);
    if (!state.forwarded) break;
    copies.push_back(
        {.from = *state.slot, .to = kv_.CommittedSlot(old_length + static_cast<uint32_t>(copies.size()))});
  }
  root_ready_ = root_ready_ && copies.size() == tokens.size();
  if (!root_ready_) return absl::OkStatus();
  root_output_ = std::move(states_.at(path.back()).output);
  return model_->engine->CopyKv(copies);
}

// The states behind the token before a row's own.
const InputState* DraftSession::ReadTarget(uint32_t position, StepBatch* batch) {
  const InputState* input = nullptr;
  const absl::Span<float> row = batch->NewInput(features_->row_size(), /*own=*/false, &input);
  bad_features_.Update(features_->Read(position, row));
  // The engine must not get NaN. The results of this step are not used.
  if (!bad_features_.ok()) std::ranges::fill(row, 0.0f);
  return input;
}

const InputState* DraftSession::ReadOutputAbove(NodeId parent, StepBatch* batch) const {
  const std::vector<float>& output = parent == 0 ? root_output_ : states_.at(parent).output;
  const InputState* input = nullptr;
  std::ranges::copy(output, batch->NewInput(output.size(), /*own=*/true, &input).begin());
  return input;
}

const FeatureRequest* DraftSession::AskForOutput(StepBatch* batch) const {
  const ModelConfig& config = model_->engine->config();
  if (config.head->own_state_is_normed) return batch->NewStateRequest(config.hidden_size);
  return batch->NewOutputRequest(static_cast<uint32_t>(config.num_layers), config.hidden_size);
}

// The root's row has been computed from the target's states: what stood in for it has had its say, but for
// the nodes that it led to. Their rows are computed again, which finds children by the states as they are.
void DraftSession::TakeRootOutput() {
  const auto size = static_cast<size_t>(model_->engine->config().hidden_size);
  root_output_.assign(root_request_->states, root_request_->states + size);
  for (std::vector<Candidate>* list : {&candidates_, &held_back_}) {
    std::erase_if(*list, [](const Candidate& candidate) { return candidate.source_score == 0.0f; });
  }
  std::make_heap(candidates_.begin(), candidates_.end(), IsWorse);
  states_.ForEach([](NodeId, NodeState& state) { state.forwarded = false; });
  waiting_.clear();
}

// Nodes that sources or an older row have put below one that is forwarded only now.
void DraftSession::WaitBelow(NodeId parent) {
  if (NumChildren(parent) == 0) return;
  for (const TreeNode& node : tree_.nodes()) {
    if (node.parent != parent || states_.at(node.id).forwarded) continue;
    if (std::ranges::find(waiting_, node.id) != waiting_.end()) continue;
    if (CanForward(node) && !IsLayerFull(node.depth)) Wait(node);
  }
}

}  // namespace tandem
