#pragma once

#include "absl/time/time.h"

namespace tandem::router {

// Bounds how much work retries add to verifiers that have troubles already: retries are a share of requests,
// and a few per second, with a reserve that a lost verifier's requests may use up at once. A token bucket:
//
//   level += share (each request) + per_second * elapsed, at most `reserve`;  a retry takes 1
//
// Not thread-safe; time is passed in.
class RetryBudget {
 public:
  struct Options {
    double share = 0.1;        // Retries per request, in the long run.
    double per_second = 10.0;  // So that few requests can be retried as well.
    double reserve = 1024.0;   // As many as may be in flight.
  };
  RetryBudget(const Options& options, absl::Time now)
      : options_(options), level_(options.reserve), refilled_(now) {}

  void OnRequest(absl::Time now);
  // Whether one more retry may be made; it then counts as made.
  bool Take(absl::Time now);
  double level() const { return level_; }

 private:
  void Add(double tokens);
  void Refill(absl::Time now);

  const Options options_;
  double level_;
  absl::Time refilled_;
};

}  // namespace tandem::router
