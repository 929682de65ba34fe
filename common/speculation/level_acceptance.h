#pragma once

#include <array>
#include <cstdint>

#include "common/speculation/acceptance_estimate.h"

namespace tandem {

// For each level of the tree, the probability that some candidate is accepted if the walk reaches the
// level, from decayed counts per level. Levels differ: the first has the most candidates, and deep ones
// build on the drafter's own mistakes. A single probability for all levels would overrate long windows.
//
// A level without trials uses the estimate of the level above; the first level uses the prior's.
class LevelAcceptance {
 public:
  struct Options {
    double history = 24.0;      // Drafted rounds over which the counts decay.
    double prior_trials = 2.0;  // Weight of the prior, at each level.
    double initial = 0.6;       // The prior, when there is none.
    double maximum = 0.98;
  };
  LevelAcceptance() : LevelAcceptance(Options{}) {}
  explicit LevelAcceptance(const Options& options) : options_(options) {}

  // Levels 1 to `accepted` succeeded, and the one below failed if the walk was rejected there. Undrafted
  // rounds are not counted.
  void Observe(const RoundOutcome& outcome);

  static constexpr uint32_t kLevels = 16;  // Deeper ones count as the last.
  // Of levels 1, 2, ...; `prior` (optional) is what others have seen.
  std::array<double, kLevels> Levels(const LevelAcceptance* prior = nullptr) const;
  // Expected accepted tokens of a tree of `depth`: sum over d <= depth of the product of levels 1 to d.
  double ExpectedAccepted(uint32_t depth, const LevelAcceptance* prior = nullptr) const;
  // Trials that still count, over all levels.
  double trials() const;

 private:
  struct Count {
    double trials = 0.0;
    double successes = 0.0;
  };
  Options options_;
  std::array<Count, kLevels> counts_;
};

}  // namespace tandem
