#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "router/drafters/choice/throughput.h"

namespace tandem::router {

// What a verifier measured while it served one request, and the speed of the request.
struct RequestOutcome {
  // Single-token acceptance by maximum likelihood: accepted / (accepted + rejections).
  uint32_t accepted = 0;
  uint32_t rejections = 0;
  // Absent: the verifier did not report it.
  std::optional<DraftCosts> draft;
  VerifySeconds verify;
  // After the first token.
  uint32_t decode_tokens = 0;
  double decode_seconds = 0.0;

  uint32_t trials() const { return accepted + rejections; }
  double acceptance() const { return trials() == 0 ? 0.0 : static_cast<double>(accepted) / trials(); }
};

// Averages of figures that verifiers report, over recent requests. Verifiers may report anything, so values
// that are not finite or out of range are ignored. Not thread-safe.
class LiveDraftCosts {
 public:
  void Observe(const DraftCosts& costs);
  const std::optional<DraftCosts>& value() const { return value_; }

 private:
  std::optional<DraftCosts> value_;
};

class LiveVerifySeconds {
 public:
  static constexpr size_t kMaxWindows = 65;

  void Observe(absl::Span<const double> seconds);
  // By window; empty before the first observation.
  const VerifySeconds& value() const { return value_; }

 private:
  VerifySeconds value_;
};

// The ratio of measured to predicted throughput, which corrects for what the formula leaves out, such as
// trees in place of chains. Averaged in the logarithm, so that half and double weigh the same.
//
// The average runs over about fifty requests, because single requests scatter more than similar drafters
// differ; with fewer, luck would decide between equally good drafters. If the last ten or so requests differ
// from the average beyond chance, the average restarts from them.
//
// After a long time without a request, the earlier requests count only as a few (Age).
class ThroughputCorrection {
 public:
  static constexpr double kLargest = 4.0;  // And one over it is the smallest.

  // Returns false, and ignores the request, if it has too few tokens or a rate is invalid.
  bool Observe(double predicted_tokens_per_second, const RequestOutcome& outcome);
  void Age();
  // Sets the average to one that was measured for long elsewhere.
  void Set(double value);
  // 1 before anything was observed or set.
  double value() const;
  bool known() const { return observed_ > 0; }

 private:
  static constexpr double kPriorVariance = 0.09;  // A scatter by a factor of 1.35.

  uint32_t observed_ = 0;
  double log_ratio_ = 0.0;
  double recent_ = 0.0;               // The same of the last requests.
  double variance_ = kPriorVariance;  // Of single requests about the average.
};

}  // namespace tandem::router
