#include "common/testing/reference_choice.h"

#include <map>

#include "common/grammar/token_mask.h"
#include "common/speculation/target_sampler.h"

namespace tandem {

TokenId ReferenceAnswer(const SeededChoice& choice, absl::Span<float> logits) {
  if (!choice.allowed.empty()) ApplyMask(choice.allowed, logits);
  std::map<TokenId, uint32_t> counts;
  for (const TokenCount& entry : choice.counts) counts[entry.token] = entry.count;
  for (const TokenCount& entry : choice.own_counts) counts[entry.token] = entry.count;
  TokenIds prompt;
  for (const auto& [token, count] : counts) prompt.push_back(token);
  // What they forbid here is not allowed already, and the order of the output is not known.
  SamplingParameters sampling = *choice.sampling;
  sampling.banned_sequences.clear();
  TargetSampler sampler(sampling, static_cast<int32_t>(logits.size()), prompt);
  for (const auto& [token, count] : counts) {
    for (uint32_t i = 0; i < count; ++i) sampler.Append(token);
  }
  return sampler.Choose(logits, choice.position).token;
}

}  // namespace tandem
