#include "common/speculation/merged_tree.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "absl/container/inlined_vector.h"

namespace tandem {

DraftOrigin Guesses::credited() const {
  for (size_t i = 0; i + 1 < kNumDraftOrigins; ++i) {
    if (scores[i] > 0.0f) return static_cast<DraftOrigin>(i);
  }
  return DraftOrigin::kLocal;
}

uint32_t MergedTree::FindOrAdd(uint32_t parent, TokenId token, uint32_t depth) {
  const auto same = [&](const Entry& entry) { return entry.parent == parent && entry.token == token; };
  // Trees have some tens of nodes.
  const auto found = std::find_if(entries_.begin(), entries_.end(), same);
  if (found != entries_.end()) return static_cast<uint32_t>(found - entries_.begin()) + 1;
  entries_.push_back({.parent = parent, .token = token, .depth = depth});
  return static_cast<uint32_t>(entries_.size());
}

void MergedTree::Add(DraftOrigin origin, absl::Span<const TreeNode> nodes) {
  std::vector<uint32_t> places;  // Of each node in entries_, from 1.
  places.reserve(nodes.size());
  entries_.reserve(entries_.size() + nodes.size());
  for (const TreeNode& node : nodes) {
    uint32_t parent = 0;
    double above = 1.0;
    if (node.depth > 1) {
      const auto end = nodes.begin() + static_cast<ptrdiff_t>(places.size());
      const auto found =
          std::find_if(nodes.begin(), end, [&](const TreeNode& other) { return other.id == node.parent; });
      assert(found != end);
      parent = places[static_cast<size_t>(found - nodes.begin())];
      above = double{found->path_score};
    }
    places.push_back(FindOrAdd(parent, node.token, node.depth));
    Entry& entry = entries_[places.back() - 1];
    entry.guesses.scores[static_cast<size_t>(origin)] = node.score;
    const double probability = above > 0.0 ? std::min(double{node.path_score} / above, 1.0) : 0.0;
    entry.probability = std::max(entry.probability, probability);
  }
}

MergedTree::Selection MergedTree::Take(uint32_t most) && {
  constexpr size_t kUsualNodes = 32;
  // Of the children of each, the root's first.
  absl::InlinedVector<double, kUsualNodes> sums(entries_.size() + 1, 0.0);
  for (const Entry& entry : entries_) sums[entry.parent] += entry.probability;
  absl::InlinedVector<double, kUsualNodes> path(entries_.size() + 1, 1.0);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    path[i + 1] = path[entry.parent] * entry.probability / std::max(sums[entry.parent], 1.0);
  }
  // The order of falling path scores, then of places, keeps parents, which are never worse, before their
  // children.
  absl::InlinedVector<uint32_t, kUsualNodes> order(entries_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return path[a + 1] != path[b + 1] ? path[a + 1] > path[b + 1] : a < b;
  });
  if (order.size() > most) order.resize(most);
  Selection selection;
  selection.nodes.reserve(order.size());
  selection.guesses.reserve(order.size());
  absl::InlinedVector<NodeId, kUsualNodes> ids(entries_.size() + 1, 0);
  for (const uint32_t at : order) {
    const Entry& entry = entries_[at];
    ids[at + 1] = static_cast<NodeId>(selection.nodes.size()) + 1;
    selection.nodes.push_back({.id = ids[at + 1],
                               .parent = ids[entry.parent],
                               .token = entry.token,
                               .depth = entry.depth,
                               .score = entry.guesses.by(entry.guesses.credited()),
                               .path_score = static_cast<float>(path[at + 1])});
    selection.guesses.push_back(entry.guesses);
  }
  return selection;
}

OriginOutcome OutcomeOf(DraftOrigin origin, absl::Span<const TreeNode> nodes,
                        absl::Span<const Guesses> guesses, absl::Span<const uint32_t> accepted,
                        bool last_known) {
  OriginOutcome outcome;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!guesses[i].IsBy(origin)) continue;
    ++outcome.guessed;
    outcome.credited += guesses[i].credited() == origin ? 1 : 0;
    outcome.depth = std::max(outcome.depth, nodes[i].depth);
  }
  bool on_own_path = true;
  for (const uint32_t place : accepted) {
    on_own_path = on_own_path && guesses[place].IsBy(origin);
    outcome.accepted += on_own_path ? 1 : 0;
    outcome.credited_accepted += guesses[place].credited() == origin ? 1 : 0;
  }
  if (outcome.accepted == accepted.size() && !last_known) return outcome;
  const NodeId end = outcome.accepted == 0 ? 0 : nodes[accepted[outcome.accepted - 1]].id;
  for (size_t i = 0; i < nodes.size(); ++i) {
    outcome.rejected = outcome.rejected || (nodes[i].parent == end && guesses[i].IsBy(origin));
  }
  return outcome;
}

}  // namespace tandem
