#include "bench/serve/load_generator.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream_reader.h"

namespace tandem::bench {
namespace {

// The requests of one run that are under way, and the records of those that have ended.
class Progress {
 public:
  explicit Progress(size_t num_requests) : records_(num_requests) {}

  void Begin() {
    absl::MutexLock lock(&mutex_);
    ++under_way_;
  }
  void End(size_t index, RequestRecord record) {
    absl::MutexLock lock(&mutex_);
    records_[index] = std::move(record);
    --under_way_;
  }
  // Returns when fewer than `limit` are under way.
  void AwaitFewerThan(size_t limit) {
    absl::MutexLock lock(&mutex_);
    const auto fewer = [this, limit] { return under_way_ < limit; };
    mutex_.Await(absl::Condition(&fewer));
  }
  std::vector<RequestRecord> Take() {
    absl::MutexLock lock(&mutex_);
    return std::move(records_);
  }

 private:
  absl::Mutex mutex_;
  size_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<RequestRecord> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

RouterBackend::RouterBackend(const std::string& endpoint, Secret token, absl::Duration timeout,
                             const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : token_(std::move(token)),
      timeout_(timeout),
      channel_(CreateChannel(endpoint, credentials, "", kClientConnectTimeout)),
      stub_(v1::Generation::NewStub(channel_)) {}

void RouterBackend::Start(const v1::GenerateRequest& request, std::function<void(RequestRecord)> done) {
  using Call = ClientStreamReader<v1::GenerateRequest, v1::GenerateResponse>;
  const std::shared_ptr<Call> call = Call::Create();
  const absl::Time start = absl::Now();
  call->context().set_deadline(absl::ToChronoTime(start + timeout_));
  if (!token_.empty()) call->context().AddMetadata("authorization", absl::StrCat("Bearer ", token_.Reveal()));
  auto recorder = std::make_shared<RequestRecorder>(start);
  call->Start(request,
              [this](grpc::ClientContext* context, const v1::GenerateRequest* message,
                     grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
                stub_->async()->Generate(context, message, reactor);
              },
              {.on_message = [recorder](v1::GenerateResponse event) { recorder->Add(event, absl::Now()); },
               .on_done = [recorder, done = std::move(done)](
                              absl::Status status) { done(recorder->End(status, absl::Now())); }});
}

LoadResult RunLoad(GenerateBackend& backend, const std::vector<v1::GenerateRequest>& requests,
                   const Load& load, const std::vector<absl::Duration>& arrivals) {
  // Shared with callbacks: the last of them may still be within End when the wait below is over.
  auto progress = std::make_shared<Progress>(requests.size());
  const absl::Time start = absl::Now();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (load.open()) {
      absl::SleepFor(start + arrivals[i] - absl::Now());
    } else {
      progress->AwaitFewerThan(std::max<size_t>(load.concurrency, 1));
    }
    progress->Begin();
    backend.Start(requests[i], [progress, i](RequestRecord record) { progress->End(i, std::move(record)); });
  }
  progress->AwaitFewerThan(1);
  return {.records = progress->Take(), .seconds = absl::ToDoubleSeconds(absl::Now() - start)};
}

}  // namespace tandem::bench
