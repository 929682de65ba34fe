#include "drafter/top_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem {

std::vector<TokenProbability> TopTokens(absl::Span<const float> logits, uint32_t count) {
  // Kept sorted: `count` is small and most tokens fail the first comparison.
  std::vector<TokenId> best;
  best.reserve(count + 1);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (best.size() == count && (count == 0 || !(logits[i] > logits[best.back()]))) continue;
    const TokenId token = static_cast<TokenId>(i);
    best.insert(std::upper_bound(best.begin(), best.end(), token,
                                 [logits](TokenId a, TokenId b) { return logits[a] > logits[b]; }),
                token);
    if (best.size() > count) best.pop_back();
  }
  if (best.empty() || !std::isfinite(logits[best.front()])) return {};
  const float maximum = logits[best.front()];
  double sum = 0.0;
  for (float logit : logits) sum += std::exp(logit - maximum);
  if (!std::isfinite(sum)) return {};

  std::vector<TokenProbability> top;
  top.reserve(best.size());
  for (TokenId token : best) {
    const double probability = std::exp(static_cast<double>(logits[token]) - maximum) / sum;
    top.push_back({.token = token,
                   .probability =
                       std::clamp(static_cast<float>(probability), std::numeric_limits<float>::min(), 1.0f)});
  }
  return top;
}

}  // namespace tandem
