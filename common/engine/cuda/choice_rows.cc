#include "common/engine/cuda/choice_rows.h"

#include <limits>
#include <map>

#include "common/speculation/gumbel.h"

namespace tandem {
namespace {

// How far below the best a token may be, see TokenGaps::KeepMinP.
float MostGap(float min_p) {
  if (min_p == 0.0f) return std::numeric_limits<float>::infinity();
  const double limit = 0.0 - NaturalLog(min_p);
  auto gap = static_cast<float>(limit);
  if (gap > limit) gap = BitsAs<float>(BitsAs<uint32_t>(gap) - 1);
  return gap;
}

}  // namespace

void AppendChoiceRow(const SamplingParameters& sampling, absl::Span<const TokenId> prompt,
                     absl::Span<const TokenId> output, uint32_t position, std::vector<ChoiceRow>* rows,
                     std::vector<ChoiceEntry>* entries) {
  std::map<TokenId, uint32_t> counts;
  const bool counts_prompt = sampling.repetition_penalty != 1.0f;
  if (counts_prompt) {
    for (TokenId token : prompt) counts.emplace(token, 0);
  }
  if (counts_prompt || sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f) {
    for (TokenId token : output) ++counts[token];
  }
  ChoiceRow row = {};
  row.seed = sampling.seed;
  row.position = position;
  row.top_k = sampling.top_k;
  row.temperature = sampling.temperature;
  row.top_p = sampling.top_p;
  row.most_gap = MostGap(sampling.min_p);
  row.repetition_penalty = sampling.repetition_penalty;
  row.presence_penalty = sampling.presence_penalty;
  row.frequency_penalty = sampling.frequency_penalty;
  row.counts_at = static_cast<uint32_t>(entries->size());
  row.num_counts = static_cast<uint32_t>(counts.size());
  for (const auto& [token, count] : counts) entries->push_back({static_cast<uint32_t>(token), count});
  row.biases_at = static_cast<uint32_t>(entries->size());
  row.num_biases = static_cast<uint32_t>(sampling.logit_bias.size());
  for (const auto& [token, bias] : sampling.logit_bias) {
    entries->push_back({static_cast<uint32_t>(token), BitsAs<uint32_t>(bias)});
  }
  rows->push_back(row);
}

}  // namespace tandem
