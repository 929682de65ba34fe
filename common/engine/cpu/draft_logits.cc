#include "common/engine/cpu/draft_logits.h"

#include <algorithm>
#include <limits>

namespace tandem {

void DraftLogits::Spread(int thread, float* logits) {
  std::vector<float>& drafted = of_threads_[static_cast<size_t>(thread)];
  std::copy_n(logits, drafted.size(), drafted.begin());
  std::fill_n(logits, vocab_size_, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < drafted.size(); ++i) logits[draft_tokens_[i]] = drafted[i];
}

}  // namespace tandem
