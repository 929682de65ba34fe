#pragma once

#include <array>
#include <cstdint>

namespace tandem {

// Calibrates a drafter's scores. It turns a score (the drafter's probability of a node, given that the
// parent is right) into the probability that the target accepts the node, and learns this while serving.
// One per drafter and draft model.
//
// An observation is a verified node whose parent was accepted (or is the root), and whether it was
// accepted itself. All such nodes count, whatever their score, and no others: below a wrong node there is
// nothing to learn, and counting only accepted paths would overrate every score.
//
// Observations are kept per class of temperature and depth, in bins of equal width on the logit scale,
// with decaying counts. The fit of a bin is its observed share, drawn towards a prior: the score itself
// for the table of all depths, and the fit of all depths for a class of depths. Fits are made
// non-decreasing (pool adjacent violators) and interpolated, so calibration keeps the order of scores
// within a class. Without data it is the identity. Memory is bounded by a constant. A hostile drafter's
// scores change only this table.
class ScoreCalibration {
 public:
  struct Options {
    double horizon = 2048.0;   // Observations of a class over which counts decay.
    double prior_count = 4.0;  // What the prior counts for, per bin.
  };
  ScoreCalibration() : ScoreCalibration(Options{}) {}
  explicit ScoreCalibration(const Options& options);

  // `depth` is the node's below the root, from 1. Scores outside (0, 1) are taken as the nearest inside.
  void Observe(float temperature, uint32_t depth, float score, bool accepted);
  // In (0, 1). Non-decreasing in the score. Fits again once there are enough new observations, compared to
  // the old ones: sessions observe in turns, and a fit for each would delay the step.
  double Calibrated(float temperature, uint32_t depth, float score);

 private:
  static constexpr uint32_t kBins = 24;
  static constexpr uint32_t kDepthClasses = 4;        // 1, 2, 3 to 4, deeper.
  static constexpr uint32_t kTemperatureClasses = 3;  // 0, up to 0.7, above.

  struct Bin {
    double count = 0.0;
    double accepted = 0.0;
    double score_sum = 0.0;
  };
  struct Table {
    std::array<Bin, kBins> bins;
    // The fitted curve: increasing scores, non-decreasing probabilities.
    std::array<double, kBins> scores;
    std::array<double, kBins> probabilities;

    double At(double score) const;
  };
  struct TemperatureTables {
    Table all;
    std::array<Table, kDepthClasses> by_depth;
    uint32_t observed = 0;    // Ever, as far as it matters,
    uint32_t not_fitted = 0;  // and since the last fit.
  };

  static uint32_t TemperatureClass(float temperature);
  static uint32_t DepthClass(uint32_t depth);
  void Count(Table& table, uint32_t bin, double score, bool accepted) const;
  // `prior` is nullptr for the identity.
  void Fit(Table& table, const Table* prior) const;
  void FitAll(TemperatureTables& tables) const;

  const Options options_;
  std::array<TemperatureTables, kTemperatureClasses> tables_;
};

}  // namespace tandem
