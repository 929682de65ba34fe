#include "common/speculation/round_tree.h"

#include <algorithm>
#include <cassert>

#include "absl/container/inlined_vector.h"
#include "common/base/node_index.h"

namespace tandem {

DraftOrigin Guesses::credited() const {
  for (size_t i = 0; i + 1 < kNumDraftOrigins; ++i) {
    if (scores[i] > 0.0f) return static_cast<DraftOrigin>(i);
  }
  return DraftOrigin::kLocal;
}

void RoundTree::Add(const RoundNode& node) {
  assert(node.parent == kRootNode ? node.depth == 1
                                  : node.parent < size() && nodes_[node.parent].depth + 1 == node.depth);
  nodes_.push_back(node);
}

void RoundTree::Keep(absl::Span<const uint32_t> indices) {
  size_t kept = 0;
  KeepIf([&](uint32_t index, const RoundNode&) {
    const bool is_wanted = kept < indices.size() && indices[kept] == index;
    kept += is_wanted ? 1 : 0;
    return is_wanted;
  });
  assert(kept == indices.size());
}

uint32_t RoundTree::KeepIf(absl::FunctionRef<bool(uint32_t index, RoundNode& node)> is_wanted) {
  constexpr size_t kUsualNodes = 64;
  absl::InlinedVector<uint32_t, kUsualNodes> places(nodes_.size(), kRootNode);  // Of those that are kept.
  uint32_t kept = 0;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    RoundNode node = nodes_[i];
    if (node.parent != kRootNode) {
      node.parent = places[node.parent];
      if (node.parent == kRootNode) continue;
    }
    if (!is_wanted(i, node)) continue;
    places[i] = kept;
    nodes_[kept++] = node;
  }
  const uint32_t removed = size() - kept;
  Truncate(kept);
  return removed;
}

std::optional<uint32_t> FindChild(absl::Span<const RoundNode> nodes, uint32_t parent, TokenId token) {
  for (uint32_t i = parent == kRootNode ? 0 : parent + 1; i < nodes.size(); ++i) {
    if (nodes[i].parent == parent && nodes[i].token == token) return i;
  }
  return std::nullopt;
}

void CollectPath(absl::Span<const RoundNode> nodes, uint32_t index, TokenIds* path) {
  path->clear();
  for (; index != kRootNode; index = nodes[index].parent) path->push_back(nodes[index].token);
  std::reverse(path->begin(), path->end());
}

}  // namespace tandem
