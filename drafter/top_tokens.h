#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

struct TokenProbability {
  TokenId token = 0;
  float probability = 0.0f;  // In (0, 1]: what would round to 0 is the smallest normal number.
};

// The `count` most likely tokens under softmax(logits), most likely first and equal ones by token id. Fewer
// when there are fewer; none when the logits have no finite maximum or one of them is not a number.
std::vector<TokenProbability> TopTokens(absl::Span<const float> logits, uint32_t count);

}  // namespace tandem
