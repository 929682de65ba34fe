#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// Predicts the time of a forward pass of the target: b_p of the paper. The inputs are the number of rows
// (roots and nodes of all sessions in the batch, and prompt rows) and the mean number of tokens that a row
// attends to. The prediction interpolates a grid measured at warm-up, times a correction that follows the
// measured steps.
//
// The correction is linear in x, the share of a step's time that the grid assigns to its rows beyond the
// first. Steps with many rows can become slower than at warm-up while steps with few rows do not, for
// example when other programs take the caches or a drafter takes a core; then each further row costs more
// than the grid says. The line goes through the means of the observations with the slope of their
// regression. A prior draws the slope towards 0 while steps are much alike. The slope is never negative:
// rows that look cheaper than at warm-up would admit candidates that are not worth them. Where what further
// rows cost is a guess, because warm-up measured too few, it may also be negative, and the first steps are
// averaged.
//
//   seconds / grid = mean ratio + slope * (x - mean x).
class RoundTimeModel {
 public:
  struct Point {
    uint32_t rows = 0;
    double seconds = 0.0;
    uint32_t context = 0;
  };
  // `grid`: every combination of some numbers of rows and some contexts, in any order, at least one. Times
  // are made non-decreasing in both, because other measurements are noise. `guessed`: what rows beyond the
  // first cost was not measured.
  explicit RoundTimeModel(const std::vector<Point>& grid, bool guessed = false);

  // Seconds for a step of `rows` rows (at least 1). Extrapolates by the last segment's slope.
  double Seconds(uint32_t rows, uint32_t context = 0) const;
  // The time without the correction, as measured at warm-up.
  double Uncorrected(uint32_t rows, uint32_t context = 0) const;
  // A step that was measured in service. Negative times and NaN are ignored.
  void Observe(uint32_t rows, double seconds, uint32_t context = 0);
  // The ratio of recent step times to the grid's.
  double correction() const { return correction_; }

 private:
  double& At(size_t row_index, size_t context_index) {
    return seconds_[row_index * contexts_.size() + context_index];
  }

  std::vector<uint32_t> rows_;      // Increasing.
  std::vector<uint32_t> contexts_;  // Increasing.
  std::vector<double> seconds_;     // [rows, contexts]
  double FurtherShare(uint32_t rows, uint32_t context) const;
  double slope() const;

  double correction_ = 1.0;  // The mean ratio,
  double mean_share_ = 0.0;  // the mean x,
  double variance_ = 0.0;    // and how x, and ratio and x together, vary about them.
  double covariance_ = 0.0;
  bool observed_ = false;
  bool guessed_ = false;
  uint16_t num_observed_ = 0;  // Of the first ones.
};

}  // namespace tandem
