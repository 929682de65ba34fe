#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/hash.h"

namespace tandem::simulation {

// The simulation's only source of chance: the same seed gives the same run on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix64(seed)) {}

  uint64_t Next() { return Mix64(state_ += 0x9e3779b97f4a7c15ull); }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Uniform() < probability; }
  // Both ends included.
  uint32_t Between(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(Next() % (uint64_t{high} - low + 1));
  }
  absl::Duration Between(absl::Duration low, absl::Duration high) { return low + Uniform() * (high - low); }
  // A generator of its own, so that what one part draws does not shift what another does.
  Random Fork() { return Random(Next()); }

 private:
  uint64_t state_;
};

}  // namespace tandem::simulation
