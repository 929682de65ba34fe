#include "router/drafters/choice/throughput.h"

#include <algorithm>

namespace tandem::router {

double ExpectedRoundTokens(double acceptance, uint32_t window) {
  // Summed, which is exact for every acceptance; windows are small.
  double tokens = 1.0;
  double reached = 1.0;
  for (uint32_t level = 0; level < window; ++level) tokens += reached *= acceptance;
  return tokens;
}

WindowForecast ForecastWindow(double acceptance, const DraftCosts& draft, absl::Span<const double> verify,
                              uint32_t window) {
  const double levels = window;
  return {.window = window,
          .tokens = ExpectedRoundTokens(acceptance, window),
          .seconds = levels * draft.exposed_level_seconds +
                     std::max(levels * draft.hidden_level_seconds, verify[window])};
}

WindowForecast BestWindow(double acceptance, const DraftCosts& draft, absl::Span<const double> verify) {
  WindowForecast best = ForecastWindow(acceptance, draft, verify, 0);
  for (uint32_t window = 1; window < verify.size(); ++window) {
    const WindowForecast forecast = ForecastWindow(acceptance, draft, verify, window);
    if (forecast.tokens_per_second() > best.tokens_per_second()) best = forecast;
  }
  return best;
}

}  // namespace tandem::router
