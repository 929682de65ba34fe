#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// The index of `id`, or where it would be inserted, in a list sorted by `id_of` without duplicates. Ids are
// handed out one after the other, so there are few gaps: the distance between two ids bounds the distance
// between their places, which finds most of them at once.
template <class List, class IdOf>
size_t PlaceOfId(const List& list, NodeId id, const IdOf& id_of) {
  if (list.empty() || id <= id_of(list.front())) return 0;
  const NodeId last = id_of(list.back());
  if (id > last) return list.size();
  size_t low = list.size() - 1 - std::min<size_t>(last - id, list.size() - 1);
  if (id_of(list[low]) >= id) return low;
  const size_t high = std::min<size_t>(id - id_of(list.front()), list.size() - 1);
  // All before `low` are smaller, and the one at `high` is not. Without branches on ids, as these would be
  // guessed wrongly.
  size_t count = high - ++low;
  while (count > 0) {
    const size_t half = (count + 1) / 2;
    low += half * static_cast<size_t>(id_of(list[low + half - 1]) < id);
    count -= half;
  }
  return low;
}

// A candidate token for the position `depth` below the root.
struct TreeNode {
  NodeId id = 0;
  NodeId parent = 0;  // 0: the root.
  TokenId token = 0;
  uint32_t depth = 0;       // 1 for children of the root.
  float score = 0.0f;       // Probability that the node is right, given that its parent is.
  float path_score = 0.0f;  // Product of the scores from the root: never above the parent's.
};

// The tree of candidates below the last committed token. Drafter and verifier each hold a copy (DESIGN
// section 3). Ids only increase, so a parent always comes before its children.
//
// The root is not a node. After Reroot(x), the root is what node x was. Messages that crossed the commit
// may still name x as a parent; `root_id` recognises it.
class CandidateTree {
 public:
  bool empty() const { return nodes_.empty(); }
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  absl::Span<const TreeNode> nodes() const { return nodes_; }
  // The id the root had as a node; 0 for a fresh root.
  NodeId root_id() const { return root_id_; }

  // Whether `id` may be a parent: the root under either name, or a node.
  bool IsKnownParent(NodeId id) const { return id == 0 || id == root_id_ || Find(id) != nullptr; }
  // Null if there is no such node. Pointers and spans are valid until the next change.
  const TreeNode* Find(NodeId id) const;
  const TreeNode* FindChild(NodeId parent, TokenId token) const;

  // `id` is above every id used before, `parent` is a known parent and `score` is finite and in (0, 1].
  const TreeNode& Add(NodeId id, NodeId parent, TokenId token, float score);

  // Removes the last added nodes until `size` are left.
  void Truncate(uint32_t size);
  // Makes node `id` the root. Its descendants stay, with new depths; all other nodes are removed.
  void Reroot(NodeId id);
  // A fresh root without candidates.
  void Clear();

  // Ids from the child of the root down to `id`, inclusive.
  std::vector<NodeId> Path(NodeId id) const;

 private:
  std::vector<TreeNode> nodes_;  // By id.
  NodeId root_id_ = 0;
};

}  // namespace tandem
