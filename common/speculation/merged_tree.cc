#include "common/speculation/merged_tree.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "absl/container/inlined_vector.h"

namespace tandem {

uint32_t MergedTree::FindOrAdd(uint32_t parent, TokenId token, uint32_t depth) {
  const auto same = [&](const Entry& entry) { return entry.parent == parent && entry.token == token; };
  // Trees have some tens of nodes.
  const auto found = std::find_if(entries_.begin(), entries_.end(), same);
  if (found != entries_.end()) return static_cast<uint32_t>(found - entries_.begin());
  entries_.push_back({.parent = parent, .token = token, .depth = depth});
  return static_cast<uint32_t>(entries_.size() - 1);
}

void MergedTree::Add(DraftOrigin origin, absl::Span<const TreeNode> nodes) {
  std::vector<uint32_t> places;  // Of each node in entries_.
  places.reserve(nodes.size());
  entries_.reserve(entries_.size() + nodes.size());
  for (const TreeNode& node : nodes) {
    uint32_t parent = RoundNode::kRoot;
    double above = 1.0;
    if (node.depth > 1) {
      const size_t at =
          PlaceOfId(nodes.first(places.size()), node.parent, [](const TreeNode& other) { return other.id; });
      assert(at < places.size() && nodes[at].id == node.parent);
      parent = places[at];
      above = double{nodes[at].path_score};
    }
    places.push_back(FindOrAdd(parent, node.token, node.depth));
    Entry& entry = entries_[places.back()];
    entry.guesses.scores[static_cast<size_t>(origin)] = node.score;
    const double probability = above > 0.0 ? std::min(double{node.path_score} / above, 1.0) : 0.0;
    entry.probability = std::max(entry.probability, probability);
  }
}

RoundTree MergedTree::Take(uint32_t most) && {
  constexpr size_t kUsualNodes = 32;
  // By the place of the parent: the sum over its children. The root's is the last.
  absl::InlinedVector<double, kUsualNodes> sums(entries_.size() + 1, 0.0);
  const auto place = [&](uint32_t parent) {
    return parent == RoundNode::kRoot ? entries_.size() : size_t{parent};
  };
  for (const Entry& entry : entries_) sums[place(entry.parent)] += entry.probability;
  absl::InlinedVector<double, kUsualNodes> path(entries_.size() + 1, 1.0);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const size_t above = place(entries_[i].parent);
    path[i] = path[above] * entries_[i].probability / std::max(sums[above], 1.0);
  }
  // The order of falling path scores, then of places, keeps parents, which are never worse, before their
  // children.
  absl::InlinedVector<uint32_t, kUsualNodes> order(entries_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return path[a] != path[b] ? path[a] > path[b] : a < b; });
  if (order.size() > most) order.resize(most);
  RoundTree tree;
  tree.Reserve(order.size());
  absl::InlinedVector<uint32_t, kUsualNodes> indices(entries_.size() + 1, RoundNode::kRoot);
  for (const uint32_t at : order) {
    const Entry& entry = entries_[at];
    indices[at] = tree.size();
    tree.Add({.parent = indices[place(entry.parent)],
              .token = entry.token,
              .depth = entry.depth,
              .score = entry.guesses.by(entry.guesses.credited()),
              .path_score = static_cast<float>(path[at]),
              .guesses = entry.guesses});
  }
  return tree;
}

OriginOutcome OutcomeOf(DraftOrigin origin, const RoundTree& tree, absl::Span<const uint32_t> accepted,
                        bool last_known) {
  OriginOutcome outcome;
  for (const RoundNode& node : tree) {
    if (!node.guesses.IsBy(origin)) continue;
    ++outcome.guessed;
    outcome.credited += node.guesses.credited() == origin ? 1 : 0;
    outcome.depth = std::max(outcome.depth, node.depth);
  }
  bool on_own_path = true;
  for (const uint32_t index : accepted) {
    on_own_path = on_own_path && tree[index].guesses.IsBy(origin);
    outcome.accepted += on_own_path ? 1 : 0;
    outcome.credited_accepted += tree[index].guesses.credited() == origin ? 1 : 0;
  }
  if (outcome.accepted == accepted.size() && !last_known) return outcome;
  const uint32_t end = outcome.accepted == 0 ? RoundNode::kRoot : accepted[outcome.accepted - 1];
  outcome.rejected = std::any_of(tree.begin(), tree.end(), [&](const RoundNode& node) {
    return node.parent == end && node.guesses.IsBy(origin);
  });
  return outcome;
}

}  // namespace tandem
