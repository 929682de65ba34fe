#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "router/drafters/choice/live_costs.h"

namespace tandem::router {

// A drafter's correction (ThroughputCorrection) for each tenant, so that one tenant's requests do not change
// another tenant's correction. A new tenant starts with the mean of all tenants' corrections, in the
// logarithm; each tenant weighs the same, however much it sends. Not thread-safe.
class TenantCorrections {
 public:
  // Beyond this many, the least recently observed tenant is dropped.
  static constexpr size_t kMostTenants = 64;

  // As ThroughputCorrection::Observe, for a request of `tenant`.
  bool Observe(absl::string_view tenant, double predicted_tokens_per_second, const RequestOutcome& outcome);
  // After a long time without a request.
  void Age();
  // Sets the correction with which all tenants start: an average that was measured for long elsewhere.
  void Set(double value);
  double value(absl::string_view tenant) const;
  // The correction of a new tenant.
  double mean() const;
  bool known() const { return start_.has_value() || !tenants_.empty(); }

 private:
  struct Entry {
    ThroughputCorrection correction;
    uint64_t observed_at = 0;  // By num_observed_.
  };

  std::map<std::string, Entry, std::less<>> tenants_;
  std::optional<double> start_;  // As Set; one more tenant for the mean.
  uint64_t num_observed_ = 0;
};

}  // namespace tandem::router
