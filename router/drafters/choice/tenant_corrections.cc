#include "router/drafters/choice/tenant_corrections.h"

#include <algorithm>
#include <cmath>

namespace tandem::router {

bool TenantCorrections::Observe(absl::string_view tenant, double predicted_tokens_per_second,
                                const RequestOutcome& outcome) {
  const auto found = tenants_.find(tenant);
  Entry entry;
  if (found != tenants_.end()) {
    entry = found->second;
  } else if (known()) {
    entry.correction.Set(mean());
    // What was loaded is an average over many requests; what others came to is a first guess.
    if (!start_.has_value()) entry.correction.Age();
  }
  if (!entry.correction.Observe(predicted_tokens_per_second, outcome)) return false;
  entry.observed_at = ++num_observed_;
  if (found != tenants_.end()) {
    found->second = entry;
    return true;
  }
  if (tenants_.size() >= kMostTenants) {
    tenants_.erase(std::min_element(tenants_.begin(), tenants_.end(), [](const auto& a, const auto& b) {
      return a.second.observed_at < b.second.observed_at;
    }));
  }
  tenants_.emplace(std::string(tenant.data(), tenant.size()), entry);
  return true;
}

void TenantCorrections::Age() {
  for (auto& [tenant, entry] : tenants_) entry.correction.Age();
}

void TenantCorrections::Set(double value) {
  tenants_.clear();
  start_ = value;
}

double TenantCorrections::value(absl::string_view tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? mean() : found->second.correction.value();
}

double TenantCorrections::mean() const {
  if (!known()) return 1.0;
  double sum = start_.has_value() ? std::log(*start_) : 0.0;
  for (const auto& [tenant, entry] : tenants_) sum += std::log(entry.correction.value());
  return std::exp(sum / static_cast<double>(tenants_.size() + (start_.has_value() ? 1 : 0)));
}

}  // namespace tandem::router
