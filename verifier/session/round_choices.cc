#include "verifier/session/round_choices.h"

#include <cassert>

#include "common/base/node_index.h"

namespace tandem {
void RoundChoices::PlanOwnCounts(const Round& round) {
  own_counts_.clear();
  own_ends_.clear();
  for (uint32_t i = 0; i < round.nodes.size(); ++i) {
    CollectPath(round.nodes, i, &path_);
    const std::vector<TokenCount> own = round.sampler->CountsAfter(path_);
    own_counts_.insert(own_counts_.end(), own.begin(), own.end());
    own_ends_.push_back(own_counts_.size());
  }
}

TokenIds RoundChoices::CompletingAfter(const Round& round, size_t row) {
  if (round.sampling->banned_sequences.empty()) return {};
  CollectPath(round.nodes, row == 0 ? kRootNode : static_cast<uint32_t>(row - 1), &path_);
  return round.sampler->CompletingTokens(path_);
}

absl::Span<const uint32_t> RoundChoices::AllowedAfter(const Round& round, size_t row) {
  const absl::Span<const uint32_t> by_sampler = round.sampler->AllowedAt(choices_[row].position);
  const absl::Span<const uint32_t> by_round =
      round.allowed.empty() ? absl::Span<const uint32_t>() : absl::MakeConstSpan(round.allowed[row]);
  const TokenIds completing = CompletingAfter(round, row);
  if (by_round.empty() && completing.empty()) return by_sampler;
  if (by_sampler.empty() && completing.empty()) return by_round;
  if (all_.size() <= row) all_.resize(row + 1);
  std::vector<uint32_t>& all = all_[row];
  all.assign(round.sampler->num_words(), UINT32_MAX);
  for (const absl::Span<const uint32_t> allowed : {by_sampler, by_round}) {
    for (size_t word = 0; word < allowed.size(); ++word) all[word] &= allowed[word];
  }
  for (const TokenId token : completing)
    all[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (static_cast<uint32_t>(token) % 32));
  return all;
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
