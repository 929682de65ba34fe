#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// How long a forward pass of the target takes, by its number of rows: b_p of the paper. A grid measured at
// warm-up, interpolated linearly, and a correction that follows what steps really take (other load, longer
// contexts).
class RoundTimeModel {
 public:
  struct Point {
    uint32_t rows = 0;
    double seconds = 0.0;
  };
  // `grid` is in increasing order of rows and not empty; times are made non-decreasing, since a measurement
  // that says otherwise is noise.
  explicit RoundTimeModel(std::vector<Point> grid);

  // Seconds for a step of `rows` rows (at least 1). Extrapolates by the last segment's slope.
  double Seconds(uint32_t rows) const { return correction_ * Uncorrected(rows); }
  // A step that was measured in service.
  void Observe(uint32_t rows, double seconds);
  double correction() const { return correction_; }

 private:
  double Uncorrected(uint32_t rows) const;

  std::vector<Point> grid_;
  double correction_ = 1.0;
};

}  // namespace tandem
