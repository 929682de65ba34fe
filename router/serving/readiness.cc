#include "router/serving/readiness.h"

#include <cstddef>

namespace tandem::router {

bool Readiness::Update(absl::Span<const Model> models, absl::Time now) {
  served_.resize(models.size(), absl::InfinitePast());
  unserved_.clear();
  size_t num_wanted = 0;
  for (size_t i = 0; i < models.size(); ++i) {
    if (models[i].served) served_[i] = now;
    if (!models[i].wanted) continue;
    ++num_wanted;
    if (now - served_[i] > options_.patience) unserved_.push_back(models[i].name);
  }
  return unserved_.empty() || (!options_.every_model && unserved_.size() < num_wanted);
}

}  // namespace tandem::router
