#include "verifier/session_constraint.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grammar/forced_tokens.h"
#include "common/grammar/token_mask.h"

namespace tandem {
namespace {

constexpr size_t kLastTokens = 16;
// Of a forced token: what must be spelled is known, how is the target's choice. The last one may be spelled
// together with what comes after it, which is not known.
constexpr float kForcedScore = 0.95f;
constexpr float kLastForcedScore = 0.6f;

}  // namespace

SessionConstraint::SessionConstraint(std::unique_ptr<ConstraintState> state,
                                     std::shared_ptr<const Tokenizer> tokenizer, int32_t vocab_size)
    : state_(std::move(state)), tokenizer_(std::move(tokenizer)), mask_(MaskWords(vocab_size)) {}

absl::Status SessionConstraint::Replay(absl::Span<const TokenId> emitted) {
  for (size_t i = 0; i < emitted.size(); ++i) {
    if (Commit(emitted[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("emitted.ids[", i, "]: ", emitted[i], ", which the constraint does not allow there"));
  }
  return absl::OkStatus();
}

std::vector<int32_t> SessionConstraint::PathTo(int32_t place) const {
  std::vector<int32_t> path;
  for (; place != kRoot; place = links_[static_cast<size_t>(place)].parent) path.push_back(place);
  std::reverse(path.begin(), path.end());
  return path;
}

bool SessionConstraint::MoveTo(int32_t place) {
  const std::vector<int32_t> wanted = PathTo(place);
  const auto [here, there] = std::mismatch(path_.begin(), path_.end(), wanted.begin(), wanted.end());
  state_->Rollback(static_cast<uint32_t>(path_.end() - here));
  path_.erase(here, path_.end());
  for (auto next = there; next != wanted.end(); ++next) {
    if (!state_->Accept(links_[static_cast<size_t>(*next)].token)) return false;
    path_.push_back(*next);
  }
  return true;
}

void SessionConstraint::LeaveTree() {
  state_->Rollback(static_cast<uint32_t>(path_.size()));
  path_.clear();
  links_.clear();
}

std::vector<bool> SessionConstraint::Allowed() {
  std::vector<bool> allowed(links_.size());
  for (size_t i = 0; i < links_.size(); ++i) {
    const int32_t parent = links_[i].parent;
    allowed[i] = (parent == kRoot || allowed[static_cast<size_t>(parent)]) && MoveTo(static_cast<int32_t>(i));
  }
  return allowed;
}

namespace {

// Places of the nodes' parents; -1: the root.
std::vector<int32_t> ParentsOf(absl::Span<const TreeNode> nodes) {
  std::vector<int32_t> parents;
  parents.reserve(nodes.size());
  for (const TreeNode& node : nodes) {
    const auto end = nodes.begin() + static_cast<ptrdiff_t>(parents.size());
    const auto parent =
        std::find_if(nodes.begin(), end, [&](const TreeNode& above) { return above.id == node.parent; });
    parents.push_back(node.depth == 1 ? -1 : static_cast<int32_t>(parent - nodes.begin()));
  }
  return parents;
}

}  // namespace

uint32_t SessionConstraint::DropForbidden(std::vector<TreeNode>* nodes) {
  BeginWalk(*nodes);
  const std::vector<bool> allowed = Allowed();
  LeaveTree();
  size_t kept = 0;
  for (size_t i = 0; i < nodes->size(); ++i) {
    if (allowed[i]) (*nodes)[kept++] = (*nodes)[i];
  }
  const auto dropped = static_cast<uint32_t>(nodes->size() - kept);
  nodes->resize(kept);
  num_dropped_ += dropped;
  return dropped;
}

std::vector<ProposedNode> SessionConstraint::WithForced(absl::Span<const ProposedNode> proposal,
                                                        const ProposalLimits& limits) {
  assert(path_.empty());
  std::vector<ProposedNode> forced;
  const std::string bytes = state_->ForcedBytes();
  if (!bytes.empty()) {
    const TokenIds tokens = SpellForced(*tokenizer_, last_tokens_, bytes);
    for (const TokenId token : tokens) {
      if (forced.size() >= std::min(limits.depth, limits.nodes)) break;
      const bool is_last = forced.size() + 1 == tokens.size();
      forced.push_back({.parent = static_cast<int32_t>(forced.size()) - 1,
                        .token = token,
                        .score = is_last ? kLastForcedScore : kForcedScore});
    }
  }
  const std::vector<ProposedNode> both[] = {{proposal.begin(), proposal.end()}, forced};
  std::vector<ProposedNode> merged = forced.empty() ? both[0] : MergeProposals(both, limits);
  links_.clear();
  for (const ProposedNode& node : merged) links_.push_back({.parent = node.parent, .token = node.token});
  const std::vector<bool> allowed = Allowed();
  LeaveTree();
  std::vector<ProposedNode> kept;
  std::vector<int32_t> places(merged.size(), kRoot);  // In `kept`.
  for (size_t i = 0; i < merged.size(); ++i) {
    if (!allowed[i]) {
      ++num_dropped_;
      continue;
    }
    places[i] = static_cast<int32_t>(kept.size());
    if (merged[i].parent >= 0) merged[i].parent = places[static_cast<size_t>(merged[i].parent)];
    kept.push_back(merged[i]);
  }
  return kept;
}

void SessionConstraint::BeginWalk(absl::Span<const TreeNode> nodes) {
  assert(path_.empty());
  links_.clear();
  const std::vector<int32_t> parents = ParentsOf(nodes);
  for (size_t i = 0; i < nodes.size(); ++i) {
    links_.push_back({.parent = parents[i], .token = nodes[i].token});
  }
}

void SessionConstraint::FillMask(int32_t place, absl::Span<uint32_t> mask) {
  if (MoveTo(place)) {
    state_->FillMask(mask);
  } else {
    // Behind what is not allowed nothing is. Only rules that draw drafts come by, on their way to reject it.
    std::fill(mask.begin(), mask.end(), 0u);
  }
}

void SessionConstraint::MaskAhead(absl::Span<const TreeNode> nodes) {
  BeginWalk(nodes);
  num_masks_ahead_ = 1 + nodes.size();
  if (masks_ahead_.size() < num_masks_ahead_) masks_ahead_.resize(num_masks_ahead_);
  for (size_t row = 0; row < num_masks_ahead_; ++row) {
    masks_ahead_[row].resize(mask_.size());
    FillMask(static_cast<int32_t>(row) - 1, absl::MakeSpan(masks_ahead_[row]));
  }
  LeaveTree();
}

void SessionConstraint::Mask(std::optional<uint32_t> node, absl::Span<float> logits) {
  if (num_masks_ahead_ > 0) {
    ApplyMask(masks_ahead_[node.has_value() ? 1 + *node : 0], logits);
    return;
  }
  FillMask(node.has_value() ? static_cast<int32_t>(*node) : kRoot, absl::MakeSpan(mask_));
  ApplyMask(mask_, logits);
}

void SessionConstraint::EndWalk() {
  num_masks_ahead_ = 0;
  LeaveTree();
}

bool SessionConstraint::Commit(TokenId token) {
  assert(path_.empty());
  if (!state_->Accept(token)) return false;
  if (last_tokens_.size() == kLastTokens) last_tokens_.erase(last_tokens_.begin());
  last_tokens_.push_back(token);
  return true;
}

}  // namespace tandem
