#include "common/speculation/candidate_tree.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tandem {

const TreeNode* CandidateTree::Find(NodeId id) const {
  const size_t at = PlaceOfId(nodes_, id, [](const TreeNode& node) { return node.id; });
  return at < nodes_.size() && nodes_[at].id == id ? &nodes_[at] : nullptr;
}

const TreeNode* CandidateTree::FindChild(NodeId parent, TokenId token) const {
  if (parent == root_id_) parent = 0;
  for (const TreeNode& node : nodes_) {
    if (node.parent == parent && node.token == token) return &node;
  }
  return nullptr;
}

const TreeNode& CandidateTree::Add(NodeId id, NodeId parent, TokenId token, float score) {
  assert(id != 0 && IsKnownParent(parent) && (nodes_.empty() || nodes_.back().id < id));
  assert(score > 0.0f && score <= 1.0f);
  TreeNode node{.id = id, .parent = parent == root_id_ ? 0 : parent, .token = token, .score = score};
  const TreeNode* above = node.parent == 0 ? nullptr : Find(node.parent);
  node.depth = above == nullptr ? 1 : above->depth + 1;
  node.path_score = above == nullptr ? score : above->path_score * score;
  nodes_.push_back(node);
  return nodes_.back();
}

void CandidateTree::Truncate(uint32_t size) {
  assert(size <= nodes_.size());
  nodes_.resize(size);
}

void CandidateTree::Reroot(NodeId id) {
  assert(Find(id) != nullptr);
  root_id_ = id;
  size_t kept = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    TreeNode node = nodes_[i];
    // A node stays when its parent is the new root or has stayed; parents come first.
    const TreeNode* above = nullptr;
    if (node.parent == id) {
      node.parent = 0;
    } else {
      const absl::Span<const TreeNode> stayed = absl::MakeConstSpan(nodes_).first(kept);
      const size_t at = PlaceOfId(stayed, node.parent, [](const TreeNode& one) { return one.id; });
      if (at == kept || stayed[at].id != node.parent) continue;
      above = &stayed[at];
    }
    node.depth = above == nullptr ? 1 : above->depth + 1;
    node.path_score = above == nullptr ? node.score : above->path_score * node.score;
    nodes_[kept++] = node;
  }
  nodes_.resize(kept);
}

void CandidateTree::Clear() {
  nodes_.clear();
  root_id_ = 0;
}

std::vector<NodeId> CandidateTree::Path(NodeId id) const {
  std::vector<NodeId> path;
  for (const TreeNode* node = Find(id); node != nullptr; node = Find(node->parent)) path.push_back(node->id);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace tandem
