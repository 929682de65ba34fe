#include "common/speculation/draft_wait.h"

#include <algorithm>

namespace tandem {

double WorthwhileWait(const DraftWait& wait) {
  if (wait.plain_seconds <= 0.0 || wait.expected_accepted <= 0.0) return 0.0;
  double longest = 0.0;
  if (wait.drafted_ahead && wait.expected_seconds < wait.plain_seconds) {
    const double own = (1.0 + wait.expected_accepted) / std::max(wait.drafted_seconds, wait.plain_seconds);
    longest = (wait.first_level + wait.expected_accepted) / (own + wait.others_tokens_per_second);
  } else {
    const double rate = 1.0 / wait.plain_seconds + wait.others_tokens_per_second;
    longest = wait.expected_accepted / rate - (wait.drafted_seconds - wait.plain_seconds);
  }
  return longest >= wait.expected_seconds ? std::max(longest, 0.0) : 0.0;
}

}  // namespace tandem
