#include "bench/serve/statistics.h"

#include <algorithm>
#include <cmath>

namespace tandem::bench {

double Quantile(std::vector<double> samples, double quantile) {
  if (samples.empty()) return 0.0;
  std::sort(samples.begin(), samples.end());
  const double place = quantile * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (place - static_cast<double>(below)) * (samples[above] - samples[below]);
}

Spread SpreadOf(const std::vector<double>& samples) {
  return {.count = samples.size(),
          .median = Median(samples),
          .low = Quantile(samples, 0.25),
          .high = Quantile(samples, 0.75)};
}

}  // namespace tandem::bench
