#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/plan/plan.h"
#include "common/base/hash.h"
#include "common/base/token.h"

namespace tandem::plan {

// Random numbers. The same seed gives the same numbers on every machine.
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

// Makes the requests of a traffic, in order of arrival. The same traffic gives the same requests.
class Arrivals {
 public:
  // `load`: multiplies the rates, or plays a recorded day so many times faster. `traffic` outlives this.
  Arrivals(const Traffic& traffic, double load);

  // For an open loop: the next request; nullopt after the last one.
  std::optional<PlannedRequest> Next();
  // For a closed loop: a request that comes now. With a recorded day, its requests in order; nullopt when
  // they are used up.
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

// The request's prompt: the token of its kind, the beginning that the tenant's prompts of that kind share,
// then random tokens. Tokens that belong to the kind are more frequent among these.
TokenIds PromptOf(const Traffic& traffic, const PlannedRequest& request);

}  // namespace tandem::plan
