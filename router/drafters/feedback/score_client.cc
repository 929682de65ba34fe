#include "router/drafters/feedback/score_client.h"

#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/rpc/trace_metadata.h"

namespace tandem::router {
namespace {

// Drafters come and go; channels to those that are gone must not pile up.
constexpr size_t kMaxChannels = 256;

}  // namespace

ScoreClient::~ScoreClient() {
  const auto none_left = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.empty(); };
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  for (Call& call : calls_) call.context.TryCancel();
  mutex_.Await(absl::Condition(&none_left));
}

std::shared_ptr<v1::Drafter::Stub> ScoreClient::StubOf(const std::string& endpoint) {
  absl::MutexLock lock(&mutex_);
  if (!stubs_.contains(endpoint) && stubs_.size() >= kMaxChannels) stubs_.clear();
  std::shared_ptr<v1::Drafter::Stub>& stub = stubs_[endpoint];
  if (stub == nullptr) stub = v1::Drafter::NewStub(tandem::CreateChannel(endpoint, credentials_));
  return stub;
}

void ScoreClient::Score(const FeedbackDrafter& drafter, v1::ScoreRequest request, const TraceContext& trace,
                        absl::Time deadline, Done done) {
  std::shared_ptr<v1::Drafter::Stub> stub = StubOf(drafter.endpoint);
  std::list<Call> fresh(1);
  const auto call = fresh.begin();
  call->stub = std::move(stub);
  call->request = std::move(request);
  call->done = std::move(done);
  call->context.set_deadline(absl::ToChronoTime(deadline));
  AddTraceContext(trace, call->context);
  {
    absl::MutexLock lock(&mutex_);
    calls_.splice(calls_.begin(), fresh);
    // A call that starts after this is cancelled as it starts.
    if (stopping_) call->context.TryCancel();
  }
  call->stub->async()->Score(&call->context, &call->request, &call->response,
                             [this, call](const grpc::Status& status) { OnDone(call, status); });
}

void ScoreClient::OnDone(std::list<Call>::iterator call, const grpc::Status& status) {
  if (status.ok()) {
    call->done(std::move(call->response));
  } else {
    call->done(FromGrpcStatus(status));
  }
  std::list<Call> over;  // Destroyed without the lock.
  absl::MutexLock lock(&mutex_);
  over.splice(over.begin(), calls_, call);
}

}  // namespace tandem::router
