#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "router/drafters/choice/live_costs.h"

namespace tandem::router {

// A drafter's correction (ThroughputCorrection) for each tenant apart, so that what one tenant's requests
// come to never changes what another tenant's are given. A tenant that nothing was observed of yet gets the
// mean of all tenants' corrections over the logarithm, in which each tenant weighs alike, however much it
// sends, and begins from there. Not thread-safe.
class TenantCorrections {
 public:
  // Beyond so many, the one that was observed least recently is forgotten.
  static constexpr size_t kMostTenants = 64;

  // As ThroughputCorrection::Observe, of a request of `tenant`.
  bool Observe(absl::string_view tenant, double predicted_tokens_per_second, const RequestOutcome& outcome);
  // After a long time without a request.
  void Age();
  // What all tenants begin with: an average that was observed for long elsewhere.
  void Set(double value);
  double value(absl::string_view tenant) const;
  // What a tenant begins with that nothing was observed of.
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
