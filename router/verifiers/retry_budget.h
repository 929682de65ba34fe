#pragma once

#include "absl/time/time.h"

namespace tandem::router {

// Bounds the work that retries add to verifiers that are already in trouble. Retries may be a share of
// requests plus a few per second; a reserve covers the requests of a lost verifier, which all retry at once.
// A token bucket:
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
  // Whether one more retry is allowed. If so, counts it.
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
