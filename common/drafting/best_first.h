#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/node_index.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"

namespace tandem {

// A guess of the next token, and the state for guessing the token after it.
template <class State>
struct GrowthBranch {
  TokenId token = 0;
  float score = 0.0f;
  State state;
};

// Grows a tree best-first by path score. `expand(state)` gives a state's branches, with tokens of their own;
// the best `branching` of them count. Equal scores are ordered by age and token, so that every run grows the
// same tree.
template <class State, class Expand>
std::vector<ProposedNode> GrowBestFirst(State root, const ProposalLimits& limits, const Expand& expand) {
  struct Candidate {
    uint32_t parent;
    uint32_t depth;
    float path_score;
    GrowthBranch<State> branch;
  };
  const auto is_worse = [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.path_score, PlaceAfterRoot(b.parent), b.branch.token) <
           std::tuple(b.path_score, PlaceAfterRoot(a.parent), a.branch.token);
  };
  std::vector<ProposedNode> nodes;
  std::vector<Candidate> heap;
  const auto add_branches = [&](const State& state, uint32_t parent, uint32_t depth, float path_score) {
    if (depth > limits.depth) return;
    std::vector<GrowthBranch<State>> branches = expand(state);
    std::stable_sort(branches.begin(), branches.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    if (branches.size() > limits.branching) branches.resize(limits.branching);
    for (GrowthBranch<State>& branch : branches) {
      const float score = path_score * branch.score;
      heap.push_back({.parent = parent, .depth = depth, .path_score = score, .branch = std::move(branch)});
      std::push_heap(heap.begin(), heap.end(), is_worse);
    }
  };
  if (limits.nodes > 0) add_branches(root, kRootNode, 1, 1.0f);
  while (nodes.size() < limits.nodes && !heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_worse);
    const Candidate best = std::move(heap.back());
    heap.pop_back();
    nodes.push_back({.parent = best.parent, .token = best.branch.token, .score = best.branch.score});
    if (nodes.size() < limits.nodes) {
      add_branches(best.branch.state, static_cast<uint32_t>(nodes.size()) - 1, best.depth + 1,
                   best.path_score);
    }
  }
  return nodes;
}

}  // namespace tandem
