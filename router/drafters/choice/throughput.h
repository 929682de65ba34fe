#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::router {

// a_q: the cost of a level of drafting, in seconds.
struct DraftCosts {
  double exposed_level_seconds = 0.0;  // Not hidden by verification: added to the round.
  double hidden_level_seconds = 0.0;   // Free until it is more than the round takes.
};

// b_p: seconds of a round by window, entry 0 being plain decoding's. At least one entry, all positive.
using VerifySeconds = std::vector<double>;

// The expected outcome of a window.
struct WindowForecast {
  uint32_t window = 0;
  double tokens = 1.0;   // Of a round, the bonus token included.
  double seconds = 0.0;  // Of a round.
  double tokens_per_second() const { return tokens / seconds; }
};

// Expected tokens of a round: (1 - A^(g+1)) / (1 - A), and g + 1 for A = 1 (On-the-fly adaptation, appendix
// B.1).
double ExpectedRoundTokens(double acceptance, uint32_t window);

// A round with window g: g * exposed + max(g * hidden, b_p(g)). With `hidden` 0 it is the paper's objective
// 1, with `exposed` 0 that of drafting that hides behind verification (DESIGN section 3).
WindowForecast ForecastWindow(double acceptance, const DraftCosts& draft, absl::Span<const double> verify,
                              uint32_t window);

// The window with the most tokens per second among 0 .. verify.size() - 1; of equal ones the smallest.
WindowForecast BestWindow(double acceptance, const DraftCosts& draft, absl::Span<const double> verify);

}  // namespace tandem::router
