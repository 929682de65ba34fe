#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// How long a forward pass of the target takes: b_p of the paper. By its number of rows (the roots and nodes
// of all sessions of the batch, and rows of prompts) and by how many tokens a row attends to on average. A
// grid measured at warm-up, interpolated linearly, and a correction that follows what steps really take.
//
// The correction is a straight line in the share x of a step's time that its rows beyond the first take by
// the grid: steps with many rows can be slower than warm-up said while those with few are not (other programs
// have the caches, a drafter has a core), and then each further row costs more than the grid says. It goes
// through the means of what was observed, with their regression's slope, which a prior draws towards 0 while
// steps are much alike, and which is never negative: rows that look cheaper than warm-up said would let in
// candidates that are not worth them.
//
//   seconds / grid = mean ratio + slope * (x - mean x).
class RoundTimeModel {
 public:
  struct Point {
    uint32_t rows = 0;
    double seconds = 0.0;
    uint32_t context = 0;
  };
  // Every combination of some numbers of rows and some contexts, in any order, at least one. Times are made
  // non-decreasing in both, since a measurement that says otherwise is noise.
  explicit RoundTimeModel(const std::vector<Point>& grid);

  // Seconds for a step of `rows` rows (at least 1). Extrapolates by the last segment's slope.
  double Seconds(uint32_t rows, uint32_t context = 0) const;
  // What warm-up measured, whatever steps take now.
  double Uncorrected(uint32_t rows, uint32_t context = 0) const;
  // A step that was measured in service. Times that are negative or not a number say nothing.
  void Observe(uint32_t rows, double seconds, uint32_t context = 0);
  // By how much steps as they are lately take longer than the grid says.
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
};

}  // namespace tandem
