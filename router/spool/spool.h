#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "router/spool/spool_folder.h"

namespace tandem::router {

// A router's spool: prompts and outputs of tenants that opted in, for drafters to learn from
// (docs/operate/learning.md).
//
//   Offer --queue, bounded--> thread: encrypt, append --> SpoolFolder
//      '-- full, too fast, no disk: dropped and counted
//
// No request waits for the spool or fails because of it. Thread-safe.
class Spool {
 public:
  struct Options {
    SpoolFolder::Options folder;
    uint64_t queue_bytes = uint64_t{16} << 20;
    // Limit per tenant, on the size of records before encryption. Unused allowance is kept for a minute.
    uint64_t bytes_per_second = uint64_t{256} << 10;
    absl::Duration clean_up_interval = absl::Minutes(1);
    absl::Duration pause_after_error = absl::Seconds(1);
  };
  // Errors of SpoolFolder::Open. `clock` and `registry` outlive the spool.
  static absl::StatusOr<std::unique_ptr<Spool>> Open(Options options, const Clock* clock,
                                                     MetricsRegistry* registry);
  // Writes all queued records.
  ~Spool();

  // Never blocks on a file.
  void Offer(SpoolRecord record);
  // These block on files. They also drop queued records of the tenant or the request.
  absl::StatusOr<SpoolFolder::Deleted> DeleteTenant(const std::string& tenant);
  absl::Status DeleteRequest(const std::string& tenant, const std::string& request_id);
  // For tests: waits until all offered records are written or dropped.
  void Flush();

 private:
  struct Queued {
    SpoolRecord record;
    uint64_t bytes = 0;
  };
  struct Quota {
    double bytes = 0.0;
    absl::Time last = absl::InfinitePast();
  };

  Spool(Options options, std::unique_ptr<SpoolFolder> folder, const Clock* clock, MetricsRegistry* registry);
  void Run();
  void Write(const SpoolRecord& record);
  void CleanUp();
  // Drops queued records for which `fits` is true.
  void DropQueued(const std::function<bool(const SpoolRecord&)>& fits);

  const Options options_;
  const Clock* const clock_;
  CounterFamily& records_;
  CounterFamily& dropped_;
  Gauge bytes_;

  absl::Mutex files_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::unique_ptr<SpoolFolder> folder_ ABSL_GUARDED_BY(files_mutex_);
  absl::Time quiet_until_ ABSL_GUARDED_BY(files_mutex_) = absl::InfinitePast();
  std::string error_ ABSL_GUARDED_BY(files_mutex_);  // That was logged last.

  absl::Mutex mutex_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Quota> quotas_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::router
