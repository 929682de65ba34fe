#include "common/speculation/round_time_model.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tandem {
namespace {

// Weight of one step in the running correction: a change of pace is followed within some twenty steps.
constexpr double kCorrectionWeight = 0.05;
// So many steps after a guess are averaged.
constexpr uint16_t kFirstSteps = static_cast<uint16_t>(1.0 / kCorrectionWeight);
// One step that the operating system interrupted must not pull the model far.
constexpr double kLargestSurprise = 4.0;
// The correction is clamped to between 1 / 1000 and 1000 times the warm-up's times. A correction of 0 could
// never change again, because it changes in proportion.
constexpr double kLargestCorrection = 1000.0;
// Of the variance of x, as a prior without slope.
constexpr double kSlopePrior = 0.002;
// Of what the mean ratio is, rows beyond the first may cost this much less or more.
constexpr double kLeastFurther = 0.5;
constexpr double kMostFurther = 4.0;
// The same where it was guessed.
constexpr double kLeastOfGuess = 1.0 / 16;
constexpr double kMostOfGuess = 16.0;

// Between which two of `points` a value lies, and how far from the first to the second: below 0 never, above
// 1 beyond the last.
struct Place {
  size_t low = 0;
  size_t high = 0;
  double share = 0.0;
};

Place PlaceOf(const std::vector<uint32_t>& points, uint32_t value) {
  if (points.size() == 1 || value <= points.front()) return {};
  const auto above = std::lower_bound(points.begin(), points.end(), value);
  const size_t high = above == points.end() ? points.size() - 1 : static_cast<size_t>(above - points.begin());
  const double low_value = points[high - 1];
  return {.low = high - 1, .high = high, .share = (value - low_value) / (points[high] - low_value)};
}

std::vector<uint32_t> SortedUnique(std::vector<uint32_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

size_t IndexOf(const std::vector<uint32_t>& sorted, uint32_t value) {
  return static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
}

}  // namespace

RoundTimeModel::RoundTimeModel(const std::vector<Point>& grid, bool guessed) : guessed_(guessed) {
  assert(!grid.empty());
  for (const Point& point : grid) {
    rows_.push_back(point.rows);
    contexts_.push_back(point.context);
  }
  rows_ = SortedUnique(rows_);
  contexts_ = SortedUnique(contexts_);
  assert(grid.size() == rows_.size() * contexts_.size());
  seconds_.resize(grid.size());
  for (const Point& point : grid) {
    At(IndexOf(rows_, point.rows), IndexOf(contexts_, point.context)) = point.seconds;
  }
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < contexts_.size(); ++c) {
      if (r > 0) At(r, c) = std::max(At(r, c), At(r - 1, c));
      if (c > 0) At(r, c) = std::max(At(r, c), At(r, c - 1));
    }
  }
}

double RoundTimeModel::Uncorrected(uint32_t rows, uint32_t context) const {
  const Place row = PlaceOf(rows_, rows);
  const Place column = PlaceOf(contexts_, context);
  const auto at = [&](size_t r) {
    const double* line = &seconds_[r * contexts_.size()];
    return line[column.low] + column.share * (line[column.high] - line[column.low]);
  };
  // Extrapolated far in both directions, two rows of the grid could cross.
  const double low = at(row.low);
  return low + row.share * std::max(at(row.high) - low, 0.0);
}

// Of the time of a step, by the grid.
double RoundTimeModel::FurtherShare(uint32_t rows, uint32_t context) const {
  const double all = Uncorrected(rows, context);
  return all > 0.0 ? std::max(1.0 - Uncorrected(1, context) / all, 0.0) : 0.0;
}

double RoundTimeModel::slope() const {
  const double slope = covariance_ / (variance_ + kSlopePrior);
  return guessed_ ? slope : std::max(slope, 0.0);
}

// The line is what the first row and the further ones cost, each by a factor of its own: neither may become
// free.
double RoundTimeModel::Seconds(uint32_t rows, uint32_t context) const {
  const double all = Uncorrected(rows, context);
  const double first = std::min(Uncorrected(1, context), all);
  const double at_first = correction_ - slope() * mean_share_;
  const double least = (guessed_ ? kLeastOfGuess : kLeastFurther) * correction_;
  const double most = (guessed_ ? kMostOfGuess : kMostFurther) * correction_;
  const double first_factor = std::clamp(at_first, least, most);
  const double further_factor = std::clamp(at_first + slope(), least, most);
  return first_factor * first + further_factor * (all - first);
}

void RoundTimeModel::Observe(uint32_t rows, double seconds, uint32_t context) {
  const double predicted = Uncorrected(rows, context);
  if (!(predicted > 0.0) || !(seconds >= 0.0)) return;
  // The first steps after a guess each count as much as one before them.
  const bool knows_little = guessed_ && num_observed_ < kFirstSteps;
  const double surprise = knows_little ? kLargestCorrection : kLargestSurprise;
  const double weight = knows_little ? 1.0 / (1.0 + num_observed_) : kCorrectionWeight;
  if (knows_little) ++num_observed_;
  const double ratio = std::clamp(seconds / predicted, correction_ / surprise, correction_ * surprise);
  const double share = FurtherShare(rows, context);
  if (!std::exchange(observed_, true)) mean_share_ = share;
  const double off_ratio = ratio - correction_;
  const double off_share = share - mean_share_;
  correction_ = std::clamp(correction_ + weight * off_ratio, 1.0 / kLargestCorrection, kLargestCorrection);
  mean_share_ += weight * off_share;
  variance_ += weight * ((1.0 - weight) * off_share * off_share - variance_);
  covariance_ += weight * ((1.0 - weight) * off_share * off_ratio - covariance_);
}

}  // namespace tandem
