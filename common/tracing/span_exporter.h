#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/tracing/span.h"

namespace tandem {

// Sends batches of spans to a receiver.
class SpanTransport {
 public:
  virtual ~SpanTransport() = default;
  // Blocks until the spans are received, at most until the deadline. Returns how many were refused.
  virtual absl::StatusOr<size_t> Send(const std::vector<SpanRecord>& spans, absl::Time deadline) = 0;
  // Makes a running Send return soon, and later ones at once. Thread-safe.
  virtual void Cancel() = 0;
};

// Passes ended spans to a transport in batches, on a thread of its own. Offer never waits: if the transport
// is too slow or does not answer, spans are dropped and counted.
//
//   Offer --> queue (bounded) --a full batch, or the interval--> Send --> exported
//                |                                                '-- refused, failed: dropped
//                '-- full, shut down: dropped
//
// Thread-safe, except Shutdown and the destructor.
class SpanExporter final : public SpanSink {
 public:
  struct Options {
    size_t max_queued = 4096;
    size_t max_batch = 512;
    absl::Duration interval = absl::Seconds(1);       // The longest a span waits for others.
    absl::Duration send_timeout = absl::Seconds(5);   // Of one batch.
    absl::Duration flush_timeout = absl::Seconds(2);  // Of all that is left at the end.
  };
  // Called with the number of spans, from any thread; must not call the exporter. Reasons: "queue_full",
  // "rejected" (by the receiver), "shutdown", or the status code that the batch failed with, such as
  // "unavailable".
  struct Observer {
    std::function<void(size_t)> on_exported;
    std::function<void(absl::string_view reason, size_t)> on_dropped;
  };

  SpanExporter(const Options& options, std::unique_ptr<SpanTransport> transport, Observer observer);
  ~SpanExporter() override { Shutdown(); }
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  void Offer(SpanRecord span) override;

  // Sends queued spans for at most the flush timeout, and ends the thread. Remaining and later spans are
  // dropped. Only the first call counts.
  void Shutdown();

 private:
  // Empty at the end.
  std::vector<SpanRecord> NextBatch(absl::Time* deadline);
  void Run();
  void Send(const std::vector<SpanRecord>& batch, absl::Time deadline);
  void Drop(absl::string_view reason, size_t count) const;

  const Options options_;
  const std::unique_ptr<SpanTransport> transport_;
  const Observer observer_;
  bool failing_ = false;  // The thread's.
  absl::Mutex mutex_;
  std::deque<SpanRecord> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time flush_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::thread thread_;
};

}  // namespace tandem
