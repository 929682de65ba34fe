#include "common/speculation/round_tree.h"

#include <algorithm>
#include <cassert>

namespace tandem {

DraftOrigin Guesses::credited() const {
  for (size_t i = 0; i + 1 < kNumDraftOrigins; ++i) {
    if (scores[i] > 0.0f) return static_cast<DraftOrigin>(i);
  }
  return DraftOrigin::kLocal;
}

RoundTree RoundTree::Of(DraftOrigin origin, absl::Span<const TreeNode> nodes) {
  RoundTree tree;
  tree.Reserve(nodes.size());
  for (const TreeNode& node : nodes) {
    RoundNode own{.token = node.token,
                  .depth = node.depth,
                  .score = node.score,
                  .path_score = node.path_score,
                  .id = node.id};
    own.guesses.scores[static_cast<size_t>(origin)] = node.score;
    if (node.depth > 1) {
      own.parent = static_cast<uint32_t>(
          PlaceOfId(tree.nodes(), node.parent, [](const RoundNode& above) { return above.id; }));
      assert(own.parent < tree.size() && tree[own.parent].id == node.parent);
    }
    tree.Add(own);
  }
  return tree;
}

void RoundTree::Add(const RoundNode& node) {
  assert(node.parent == RoundNode::kRoot
             ? node.depth == 1
             : node.parent < size() && nodes_[node.parent].depth + 1 == node.depth);
  nodes_.push_back(node);
}

void RoundTree::Keep(absl::Span<const uint32_t> indices) {
  // Of each node kept so far; parents come first.
  std::vector<uint32_t> places(nodes_.size(), RoundNode::kRoot);
  for (uint32_t i = 0; i < indices.size(); ++i) {
    RoundNode node = nodes_[indices[i]];
    assert(indices[i] >= i && (node.parent == RoundNode::kRoot || places[node.parent] != RoundNode::kRoot));
    if (node.parent != RoundNode::kRoot) node.parent = places[node.parent];
    places[indices[i]] = i;
    nodes_[i] = node;
  }
  Truncate(indices.size());
}

std::optional<uint32_t> FindChild(absl::Span<const RoundNode> nodes, uint32_t parent, TokenId token) {
  for (uint32_t i = parent == RoundNode::kRoot ? 0 : parent + 1; i < nodes.size(); ++i) {
    if (nodes[i].parent == parent && nodes[i].token == token) return i;
  }
  return std::nullopt;
}

void CollectPathUp(absl::Span<const RoundNode> nodes, uint32_t index, TokenIds* path) {
  path->clear();
  for (; index != RoundNode::kRoot; index = nodes[index].parent) path->push_back(nodes[index].token);
}

}  // namespace tandem
