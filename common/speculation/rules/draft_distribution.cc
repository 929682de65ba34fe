#include "common/speculation/rules/draft_distribution.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace tandem {

std::string FindViolation(const DraftDistribution& distribution, int32_t vocab_size) {
  const size_t count = distribution.tokens.size();
  const auto where = [&] { return absl::StrCat("the draft distribution of node ", distribution.parent); };
  if (count == 0 || count > kMaxDraftSupport || distribution.probabilities.size() != count) {
    return absl::StrCat(where(), " has ", count, " tokens and ", distribution.probabilities.size(),
                        " probabilities, expected as many of each, 1 to ", kMaxDraftSupport);
  }
  absl::flat_hash_set<TokenId> seen;
  double sum = 0.0;
  for (size_t i = 0; i < count; ++i) {
    const TokenId token = distribution.tokens[i];
    const float probability = distribution.probabilities[i];
    if (token < 0 || token >= vocab_size || !seen.insert(token).second) {
      return absl::StrCat(where(), " has token ", token, " at ", i, ", expected another one of 0 to ",
                          vocab_size - 1);
    }
    // Written so that NaN fails.
    if (!(probability > 0.0f && probability <= 1.0f)) {
      return absl::StrCat(where(), " gives token ", token, " probability ", probability, ", expected (0, 1]");
    }
    sum += probability;
  }
  if (std::abs(sum - 1.0) > kDraftSumTolerance) {
    return absl::StrCat(where(), " sums to ", sum, ", expected 1");
  }
  return "";
}

RemainingDraft::RemainingDraft(const DraftDistribution* distribution)
    : distribution_(distribution),
      weights_(distribution->probabilities.begin(), distribution->probabilities.end()),
      total_(std::accumulate(weights_.begin(), weights_.end(), 0.0)) {}

double RemainingDraft::Probability(TokenId token) const {
  if (empty()) return 0.0;
  const TokenIds& tokens = distribution_->tokens;
  const auto at = std::find(tokens.begin(), tokens.end(), token);
  return at == tokens.end() ? 0.0 : probability(static_cast<size_t>(at - tokens.begin()));
}

double RemainingDraft::LargestProbability() const {
  return empty() ? 0.0 : *std::max_element(weights_.begin(), weights_.end()) / total_;
}

void RemainingDraft::Remove(TokenId token) {
  const TokenIds& tokens = distribution_->tokens;
  const auto at = std::find(tokens.begin(), tokens.end(), token);
  if (at == tokens.end()) return;
  weights_[static_cast<size_t>(at - tokens.begin())] = 0.0;
  // Summed anew: what is left may be tiny next to what has gone.
  total_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
}

TokenId RemainingDraft::Draw(double uniform) const {
  assert(!empty());
  const double wanted = uniform * total_;
  double reached = 0.0;
  size_t last = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0.0) continue;
    last = i;
    reached += weights_[i];
    if (wanted < reached) break;
  }
  return token(last);
}

}  // namespace tandem
