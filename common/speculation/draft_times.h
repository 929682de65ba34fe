#pragma once

#include <cstdint>

namespace tandem {

// Measures how long a drafter takes: the time per level (a_q of the paper) and the round trip. The sources
// are the step times that the drafter reports, and the arrival times of its growth. One per drafter and
// draft model. Reports are not trusted, so their values are bounded.
class DraftTimes {
 public:
  // A step of the drafter, as its growth reports it. Ignored unless positive and finite.
  void ObserveLevel(double seconds);
  // From a commit (or the opening) that left the drafter without a tree to the first growth below it,
  // including the round trip and all overhead.
  void ObserveFirstGrowth(double seconds);

  // Average; 0 before the first observation.
  double level_seconds() const { return level_.value; }
  // From a miss to a tree of `depth` levels (at least 1).
  double SecondsTo(uint32_t depth) const;
  bool knows_first_growth() const { return first_growth_.known; }

 private:
  struct Average {
    double value = 0.0;
    bool known = false;
    void Add(double seconds);
  };
  Average level_;
  Average first_growth_;
};

}  // namespace tandem
