#include "common/speculation/round_time_model.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tandem {
namespace {

// Weight of one step in the running correction: a change of pace is followed within some twenty steps.
constexpr double kCorrectionWeight = 0.05;
// One step that the operating system interrupted must not pull the model far.
constexpr double kLargestSurprise = 4.0;

}  // namespace

RoundTimeModel::RoundTimeModel(std::vector<Point> grid) : grid_(std::move(grid)) {
  assert(!grid_.empty());
  for (size_t i = 1; i < grid_.size(); ++i) {
    assert(grid_[i - 1].rows < grid_[i].rows);
    grid_[i].seconds = std::max(grid_[i].seconds, grid_[i - 1].seconds);
  }
}

double RoundTimeModel::Uncorrected(uint32_t rows) const {
  if (grid_.size() == 1 || rows <= grid_.front().rows) return grid_.front().seconds;
  auto upper = std::lower_bound(grid_.begin(), grid_.end(), rows,
                                [](const Point& point, uint32_t wanted) { return point.rows < wanted; });
  if (upper == grid_.end()) --upper;
  const Point& low = *(upper - 1);
  const double slope = (upper->seconds - low.seconds) / (upper->rows - low.rows);
  return low.seconds + slope * (static_cast<double>(rows) - low.rows);
}

void RoundTimeModel::Observe(uint32_t rows, double seconds) {
  const double predicted = Uncorrected(rows);
  if (predicted <= 0.0) return;
  const double ratio =
      std::clamp(seconds / predicted, correction_ / kLargestSurprise, correction_ * kLargestSurprise);
  correction_ += kCorrectionWeight * (ratio - correction_);
}

}  // namespace tandem
