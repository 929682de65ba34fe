#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "router/serving/swap.h"
#include "router/verifiers/verifier_pool.h"

namespace tandem::router {

// A generating request, as a swap uses it. Thread-safe.
class RunningCall {
 public:
  virtual ~RunningCall() = default;
  virtual const std::string& tenant() const = 0;
  // If the request is bound to the drafter `from`: binds it to `to` for all later attempts and returns the
  // verifier on which it runs now. Null if there is none.
  virtual std::shared_ptr<Verifier> Rebind(const std::string& from, const v1::DrafterTarget& to) = 0;
  // Ends the request with this status.
  virtual void Abandon(const absl::Status& status) = 0;
};

// All requests of the router that run on a verifier. Thread-safe. Destroy it after the last swap's `done`.
class RunningCalls final : public RunningSwap {
 public:
  ~RunningCalls() override;

  void Add(const std::shared_ptr<RunningCall>& call);
  void Remove(const RunningCall* call);

  // Ends all requests with this status.
  void EndAll(const absl::Status& status);

  void SwapRunning(const std::string& tenant, const std::string& from, const v1::DrafterTarget& to,
                   Done done) override;

 private:
  struct Swap;
  std::vector<std::shared_ptr<RunningCall>> Held();
  void Ask(Verifier& verifier, std::shared_ptr<Swap> swap);

  absl::Mutex mutex_;
  absl::flat_hash_map<const RunningCall*, std::weak_ptr<RunningCall>> calls_ ABSL_GUARDED_BY(mutex_);
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;  // Questions that are not answered yet.
};

}  // namespace tandem::router
