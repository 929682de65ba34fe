#include "common/speculation/score_calibration.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tandem {
namespace {

// Bins cover logits from -6 to 6: probabilities from 0.0025 to 0.9975.
constexpr double kLargestLogit = 6.0;
// In the pooling, a bin without observations gives way to those that have them.
constexpr double kUnseenWeight = 0.1;
// Of so many observations one may wait for the next fit, and so many at most.
constexpr uint32_t kMostUnfitted = 32;
constexpr double kLeast = 1e-6;
constexpr double kMost = 1.0 - 1e-6;

double Logit(double probability) {
  return std::log(probability / (1.0 - probability));
}

double Sigmoid(double logit) {
  return 1.0 / (1.0 + std::exp(-logit));
}

// Not a number is the least.
double Bounded(double score) {
  return score > kLeast ? std::min(score, kMost) : kLeast;
}

uint32_t BinOf(double score, uint32_t num_bins) {
  const double share = (Logit(score) + kLargestLogit) / (2.0 * kLargestLogit);
  return static_cast<uint32_t>(std::clamp(share * num_bins, 0.0, num_bins - 1.0));
}

double CentreOf(uint32_t bin, uint32_t num_bins) {
  return Sigmoid(2.0 * kLargestLogit * (bin + 0.5) / num_bins - kLargestLogit);
}

}  // namespace

ScoreCalibration::ScoreCalibration(const Options& options) : options_(options) {
  for (TemperatureTables& tables : tables_) FitAll(tables);
}

uint32_t ScoreCalibration::TemperatureClass(float temperature) {
  if (!(temperature > 0.0f)) return 0;
  return temperature <= 0.7f ? 1 : 2;
}

uint32_t ScoreCalibration::DepthClass(uint32_t depth) {
  if (depth <= 2) return depth <= 1 ? 0 : 1;
  return depth <= 4 ? 2 : 3;
}

double ScoreCalibration::Table::At(double score) const {
  // Beyond the ends the curve goes on in proportion, which leaves the identity what it is.
  if (score <= scores.front()) return probabilities.front() * score / scores.front();
  if (score >= scores.back()) return std::min(probabilities.back() * score / scores.back(), kMost);
  // The first one above, by strides at first: without branches, as these would be guessed wrongly.
  constexpr size_t kStride = 6;
  static_assert(kBins % kStride == 0);
  size_t high = 0;
  for (size_t end = kStride; end < kBins; end += kStride) high += scores[end - 1] <= score ? kStride : 0;
  const auto stride = scores.begin() + static_cast<ptrdiff_t>(high);
  for (size_t i = 0; i + 1 < kStride; ++i) high += stride[i] <= score ? 1 : 0;
  const double share = (score - scores[high - 1]) / (scores[high] - scores[high - 1]);
  return probabilities[high - 1] + share * (probabilities[high] - probabilities[high - 1]);
}

void ScoreCalibration::Count(Table& table, uint32_t bin, double score, bool accepted) const {
  const double keep = 1.0 - 1.0 / std::max(options_.horizon, 1.0);
  for (Bin& each : table.bins) {
    each.count *= keep;
    each.accepted *= keep;
    each.score_sum *= keep;
  }
  Bin& counted = table.bins[bin];
  counted.count += 1.0;
  counted.accepted += accepted ? 1.0 : 0.0;
  counted.score_sum += score;
}

void ScoreCalibration::Fit(Table& table, const Table* prior) const {
  // Blocks of neighbouring bins whose order the counts contradict share one probability.
  struct Block {
    double weight = 0.0;
    double value = 0.0;
    uint32_t end = 0;
  };
  std::array<Block, kBins> blocks;
  uint32_t num_blocks = 0;
  for (uint32_t i = 0; i < kBins; ++i) {
    const Bin& bin = table.bins[i];
    const double weight = bin.count + options_.prior_count;
    table.scores[i] = (bin.score_sum + options_.prior_count * CentreOf(i, kBins)) / weight;
    const double expected = prior == nullptr ? table.scores[i] : prior->At(table.scores[i]);
    blocks[num_blocks++] = {bin.count + kUnseenWeight,
                            (bin.accepted + options_.prior_count * expected) / weight, i + 1};
    while (num_blocks > 1 && blocks[num_blocks - 2].value > blocks[num_blocks - 1].value) {
      const Block& last = blocks[num_blocks - 1];
      Block& merged = blocks[num_blocks - 2];
      const double total = merged.weight + last.weight;
      merged = {total, (merged.value * merged.weight + last.value * last.weight) / total, last.end};
      --num_blocks;
    }
  }
  uint32_t at = 0;
  for (uint32_t block = 0; block < num_blocks; ++block) {
    for (; at < blocks[block].end; ++at) table.probabilities[at] = blocks[block].value;
  }
}

void ScoreCalibration::FitAll(TemperatureTables& tables) const {
  Fit(tables.all, nullptr);
  for (Table& table : tables.by_depth) Fit(table, &tables.all);
  tables.not_fitted = 0;
}

void ScoreCalibration::Observe(float temperature, uint32_t depth, float score, bool accepted) {
  TemperatureTables& tables = tables_[TemperatureClass(temperature)];
  Table& own = tables.by_depth[DepthClass(depth)];
  const double bounded = Bounded(score);
  const uint32_t bin = BinOf(bounded, kBins);
  Count(tables.all, bin, bounded, accepted);
  Count(own, bin, bounded, accepted);
  tables.observed = std::min(tables.observed + 1, kMostUnfitted * kMostUnfitted);
  ++tables.not_fitted;
}

double ScoreCalibration::Calibrated(float temperature, uint32_t depth, float score) {
  TemperatureTables& tables = tables_[TemperatureClass(temperature)];
  // The first observations count at once, later ones when there are enough to tell.
  if (tables.not_fitted > tables.observed / kMostUnfitted) FitAll(tables);
  return std::clamp(tables.by_depth[DepthClass(depth)].At(Bounded(score)), kLeast, kMost);
}

}  // namespace tandem
