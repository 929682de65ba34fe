#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tandem::bench {

// The value below which the share `quantile`, in [0, 1], of the samples lies, interpolated between neighbours
// (type 7 of Hyndman and Fan, "Sample quantiles in statistical packages", 1996). 0 without samples.
double Quantile(std::vector<double> samples, double quantile);
inline double Median(std::vector<double> samples) {
  return Quantile(std::move(samples), 0.5);
}

struct Spread {
  size_t count = 0;
  double median = 0.0;
  double low = 0.0;   // First quartile.
  double high = 0.0;  // Third quartile.
};
Spread SpreadOf(const std::vector<double>& samples);

}  // namespace tandem::bench
