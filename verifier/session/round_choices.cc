#include "verifier/session/round_choices.h"

#include <algorithm>
#include <cassert>

namespace tandem {
namespace {

// The tokens from below the root down to node `index`, the last one first: their order does not matter.
void CollectPath(absl::Span<const TreeNode> nodes, size_t index, TokenIds* path) {
  path->clear();
  path->push_back(nodes[index].token);
  while (nodes[index].depth > 1) {
    const auto parent =
        std::lower_bound(nodes.begin(), nodes.begin() + index, nodes[index].parent,
                         [](const TreeNode& node, NodeId wanted) { return node.id < wanted; });
    index = static_cast<size_t>(parent - nodes.begin());
    path->push_back(nodes[index].token);
  }
}

}  // namespace

void RoundChoices::PlanOwnCounts(const Round& round) {
  own_counts_.clear();
  own_ends_.clear();
  for (size_t i = 0; i < round.nodes.size(); ++i) {
    CollectPath(round.nodes, i, &path_);
    const std::vector<TokenCount> own = round.sampler->CountsAfter(path_);
    own_counts_.insert(own_counts_.end(), own.begin(), own.end());
    own_ends_.push_back(own_counts_.size());
  }
}

absl::Span<const uint32_t> RoundChoices::AllowedAfter(const Round& round, size_t row) {
  const absl::Span<const uint32_t> by_sampler = round.sampler->AllowedAt(choices_[row].position);
  if (round.allowed.empty()) return by_sampler;
  const absl::Span<const uint32_t> by_round = round.allowed[row];
  if (by_sampler.empty()) return by_round;
  if (both_.size() <= row) both_.resize(row + 1);
  std::vector<uint32_t>& both = both_[row];
  both.assign(by_round.begin(), by_round.end());
  for (size_t word = 0; word < both.size(); ++word) both[word] &= by_sampler[word];
  return both;
}

void RoundChoices::Plan(const Round& round, absl::Span<StepRow> rows) {
  assert(rows.size() == 1 + round.nodes.size());
  counts_ = round.sampler->Counts();
  PlanOwnCounts(round);
  tokens_.assign(rows.size(), 0);
  choices_.assign(rows.size(), {.sampling = round.sampling, .position = round.position, .counts = counts_});
  for (size_t i = 0; i < round.nodes.size(); ++i) {
    const size_t begin = i == 0 ? 0 : own_ends_[i - 1];
    choices_[1 + i].position += round.nodes[i].depth;
    choices_[1 + i].own_counts = absl::MakeConstSpan(own_counts_).subspan(begin, own_ends_[i] - begin);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    choices_[i].token = &tokens_[i];
    choices_[i].allowed = AllowedAfter(round, i);
    rows[i].choice = &choices_[i];
  }
}

}  // namespace tandem
