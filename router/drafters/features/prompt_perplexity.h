#pragma once

#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem::router {

// A language model that measures how surprising a prompt is. Thread-safe.
class PromptPerplexity {
 public:
  virtual ~PromptPerplexity() = default;
  // Mean negative log probability of the tokens, in nats: the logarithm of the perplexity. 0 for no tokens.
  virtual double NatsPerToken(absl::Span<const TokenId> tokens) const = 0;
};

}  // namespace tandem::router
