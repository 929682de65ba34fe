#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "router/drafters/features/prompt_perplexity.h"

namespace tandem::bench {

// Estimates a drafter's perplexity without asking it: for each token, the mean cost at the drafter in prompts
// that it has scored. Rare tokens are drawn towards the mean over all tokens.
class TokenNats final : public router::PromptPerplexity {
 public:
  explicit TokenNats(uint32_t vocab_size) : tokens_(vocab_size) {}

  // `nats` are those of the prompt's last tokens.
  void Observe(absl::Span<const TokenId> prompt, absl::Span<const float> nats);
  double NatsPerToken(absl::Span<const TokenId> tokens) const override;

 private:
  struct Sum {
    double nats = 0.0;
    double count = 0.0;
  };
  std::vector<Sum> tokens_;
  Sum all_;
};

}  // namespace tandem::bench
