#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/plan/plan.h"
#include "common/base/hash.h"
#include "common/base/token.h"

namespace tandem::plan {

// Random numbers from a seed, the same on every machine.
class PlanRandom {
 public:
  explicit PlanRandom(uint64_t seed) : state_(Mix64(seed)) {}
  uint64_t Bits() { return state_ = Mix64(state_ + 0x706c616e); }
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }  // In [0, 1).
  double Exponential(double mean);
  double Normal();
  uint32_t Draw(const Lengths& lengths);

 private:
  uint64_t state_;
};

// A request as it reaches the router.
struct PlannedRequest {
  uint64_t number = 0;  // From 0, in order of arrival.
  double at_seconds = 0.0;
  uint32_t tenant = 0;
  uint32_t kind = 0;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
};

// The requests of a traffic, in order of their arrival. A function of the traffic alone.
class Arrivals {
 public:
  // `load`: on rates, by which factor; recorded days are played as much faster. `traffic` outlives this.
  Arrivals(const Traffic& traffic, double load);

  // Of an open loop: the next one, until there are no more.
  std::optional<PlannedRequest> Next();
  // Of a closed loop: one that comes now; what was recorded is asked for in its order, until it is used up.
  std::optional<PlannedRequest> At(double seconds);

 private:
  double RateAt(double seconds) const;
  void Fill(PlannedRequest* request);
  PlannedRequest Recorded(double seconds);

  const Traffic& traffic_;
  const double load_;
  double highest_rate_ = 0.0;
  double now_ = 0.0;
  uint64_t next_number_ = 0;
  PlanRandom times_;
  PlanRandom contents_;
};

// The request's prompt: the kind's token, then what the tenant's prompts of that kind have in common, then
// tokens of its own, of which the kind's tokens are more frequent.
TokenIds PromptOf(const Traffic& traffic, const PlannedRequest& request);

}  // namespace tandem::plan
