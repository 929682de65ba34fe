#include "common/speculation/draft_times.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr double kWeight = 0.1;
// No step takes longer than a round would wait for it.
constexpr double kLongest = 10.0;
// One delayed message must not pull the average far.
constexpr double kLargestDraftSurprise = 4.0;

}  // namespace

void DraftTimes::Average::Add(double seconds) {
  if (!std::isfinite(seconds) || seconds <= 0.0) return;
  seconds = std::min(seconds, kLongest);
  if (!known) {
    value = seconds;
    known = true;
    return;
  }
  value += kWeight * (std::min(seconds, kLargestDraftSurprise * value) - value);
}

void DraftTimes::ObserveLevel(double seconds) {
  level_.Add(seconds);
}

void DraftTimes::ObserveFirstGrowth(double seconds) {
  first_growth_.Add(seconds);
}

double DraftTimes::SecondsTo(uint32_t depth) const {
  return std::max(first_growth_.value, level_.value) + (std::max<uint32_t>(depth, 1) - 1) * level_.value;
}

}  // namespace tandem
