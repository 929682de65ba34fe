#pragma once

#include <vector>

#include "common/base/token.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Moves the logits of a draft head for some of the tokens from the order of its outputs to that of the
// target's vocabulary. Threads may move different rows at the same time.
class DraftLogits {
 public:
  // `draft_tokens`: of each output; outlives this.
  DraftLogits(const ModelConfig& config, const TokenIds& draft_tokens, int num_threads)
      : vocab_size_(config.vocab_size),
        draft_tokens_(draft_tokens),
        of_threads_(static_cast<size_t>(num_threads), std::vector<float>(draft_tokens.size())) {}

  // `logits`: [vocab_size]. The product has written the first draft_vocab_size. The logits of tokens that the
  // head does not draft become minus infinity.
  void Spread(int thread, float* logits);

 private:
  const int32_t vocab_size_;
  const TokenIds& draft_tokens_;
  std::vector<std::vector<float>> of_threads_;  // [draft_vocab_size]
};

}  // namespace tandem
