#include "router/router.h"

#include <cassert>
#include <utility>

namespace tandem::router {

Router::Router(Options options)
    : options_(std::move(options)),
      tenants_(options_.table),
      admission_(options_.table),
      verifiers_(options_.table),
      workers_(options_.tokenizer_threads) {
  assert(options_.models.size() == options_.table.models.size());
}

Router::~Router() {
  const auto none_left = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return leases_ == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&none_left));
}

void Router::ChangeLeases(int by) {
  absl::MutexLock lock(&mutex_);
  leases_ += by;
}

}  // namespace tandem::router
