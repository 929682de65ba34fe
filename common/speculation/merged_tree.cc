#include "common/speculation/merged_tree.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "common/base/node_index.h"

namespace tandem {

uint32_t MergedTree::FindOrAdd(const RoundNode& node) {
  // Trees have some tens of nodes.
  const std::optional<uint32_t> known = FindChild(nodes_, node.parent, node.token);
  if (known.has_value()) return *known;
  nodes_.push_back({.parent = node.parent, .token = node.token, .depth = node.depth});
  probabilities_.push_back(0.0);
  return static_cast<uint32_t>(nodes_.size() - 1);
}

void MergedTree::Add(const RoundTree& tree) {
  std::vector<uint32_t> places;  // Of each node in nodes_.
  places.reserve(tree.size());
  nodes_.reserve(nodes_.size() + tree.size());
  probabilities_.reserve(nodes_.size() + tree.size());
  for (RoundNode node : tree) {
    double above = 1.0;
    if (node.parent != kRootNode) {
      above = double{tree[node.parent].path_score};
      node.parent = places[node.parent];
    }
    const uint32_t at = FindOrAdd(node);
    places.push_back(at);
    for (size_t i = 0; i < kNumDraftOrigins; ++i) {
      if (node.guesses.scores[i] > 0.0f) nodes_[at].guesses.scores[i] = node.guesses.scores[i];
    }
    const double probability = above > 0.0 ? std::min(double{node.path_score} / above, 1.0) : 0.0;
    probabilities_[at] = std::max(probabilities_[at], probability);
  }
}

RoundTree MergedTree::Take(uint32_t most) && {
  constexpr size_t kUsualNodes = 32;
  // After the root and after every node: the sum over its children.
  absl::InlinedVector<double, kUsualNodes> sums(nodes_.size() + 1, 0.0);
  for (size_t i = 0; i < nodes_.size(); ++i) sums[PlaceAfterRoot(nodes_[i].parent)] += probabilities_[i];
  absl::InlinedVector<double, kUsualNodes> path(nodes_.size() + 1, 1.0);
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const uint32_t above = PlaceAfterRoot(nodes_[i].parent);
    path[PlaceAfterRoot(i)] = path[above] * probabilities_[i] / std::max(sums[above], 1.0);
  }
  // The order of falling path scores, then of places, keeps parents, which are never worse, before their
  // children.
  absl::InlinedVector<uint32_t, kUsualNodes> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const double path_a = path[PlaceAfterRoot(a)], path_b = path[PlaceAfterRoot(b)];
    return path_a != path_b ? path_a > path_b : a < b;
  });
  if (order.size() > most) order.resize(most);
  RoundTree tree;
  tree.Reserve(order.size());
  // After the root and after every node: its index in the new tree.
  absl::InlinedVector<uint32_t, kUsualNodes> indices(nodes_.size() + 1, kRootNode);
  for (const uint32_t at : order) {
    RoundNode node = nodes_[at];
    node.parent = indices[PlaceAfterRoot(node.parent)];
    node.score = node.guesses.by(node.guesses.credited());
    node.path_score = static_cast<float>(path[PlaceAfterRoot(at)]);
    indices[PlaceAfterRoot(at)] = tree.size();
    tree.Add(node);
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
  const uint32_t end = outcome.accepted == 0 ? kRootNode : accepted[outcome.accepted - 1];
  outcome.rejected = std::any_of(tree.begin(), tree.end(), [&](const RoundNode& node) {
    return node.parent == end && node.guesses.IsBy(origin);
  });
  return outcome;
}

}  // namespace tandem
