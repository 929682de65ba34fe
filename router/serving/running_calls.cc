#include "router/serving/running_calls.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/release.h"
#include "common/rpc/status.h"
#include "grpcpp/client_context.h"

namespace tandem::router {
namespace {

// A verifier answers within its own time-out for swaps, which is shorter.
constexpr absl::Duration kPatience = absl::Seconds(10);

}  // namespace

// One swap over all verifiers concerned. Its end is told by the last question that holds it.
struct RunningCalls::Swap {
  ~Swap() {
    if (error.ok()) {
      done(result);
    } else {
      done(error);
    }
  }

  v1::SwapDrafterRequest request;
  Done done;
  absl::Mutex mutex;
  SwapResult result;
  absl::Status error;
};

RunningCalls::~RunningCalls() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](RunningCalls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls->mutex_) { return calls->asked_ == 0; },
      this));
}

void RunningCalls::Add(const std::shared_ptr<RunningCall>& call) {
  absl::MutexLock lock(&mutex_);
  calls_[call.get()] = call;
}

void RunningCalls::Remove(const RunningCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

std::vector<std::shared_ptr<RunningCall>> RunningCalls::Held() {
  std::vector<std::shared_ptr<RunningCall>> calls;
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, call] : calls_) {
    if (std::shared_ptr<RunningCall> held = call.lock()) calls.push_back(std::move(held));
  }
  return calls;
}

void RunningCalls::EndAll(const absl::Status& status) {
  for (const std::shared_ptr<RunningCall>& call : Held()) call->Abandon(status);
}

void RunningCalls::SwapRunning(const std::string& tenant, const std::string& from,
                               const v1::DrafterTarget& to, Done done) {
  const std::vector<std::shared_ptr<RunningCall>> calls = Held();
  // A verifier may serve several models, and be in use for each.
  absl::flat_hash_map<std::string, std::shared_ptr<Verifier>> verifiers;
  for (const std::shared_ptr<RunningCall>& call : calls) {
    if (call->tenant() != tenant) continue;
    if (std::shared_ptr<Verifier> verifier = call->Rebind(from, to)) {
      const std::string endpoint = verifier->endpoint;
      verifiers.emplace(endpoint, std::move(verifier));
    }
  }
  auto swap = std::make_shared<Swap>();
  swap->done = std::move(done);
  swap->request.set_tenant(tenant);
  swap->request.set_from(from);
  *swap->request.mutable_to() = to;
  for (const auto& [endpoint, verifier] : verifiers) Ask(*verifier, swap);
}

void RunningCalls::Ask(Verifier& verifier, std::shared_ptr<Swap> swap) {
  struct Question {
    std::shared_ptr<Swap> swap;
    grpc::ClientContext context;
    v1::SwapDrafterResponse response;
  };
  auto question = std::make_shared<Question>();
  question->swap = std::move(swap);
  question->context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  {
    absl::MutexLock lock(&mutex_);
    ++asked_;
  }
  verifier.stub->async()->SwapDrafter(
      &question->context, &question->swap->request, &question->response,
      [this, question, endpoint = verifier.endpoint](grpc::Status grpc_status) mutable {
        RunningCalls& calls = *this;
        const absl::Status status = FromGrpcStatus(grpc_status);
        std::shared_ptr<Swap> held = std::move(question->swap);
        {
          absl::MutexLock lock(&held->mutex);
          const v1::SwapDrafterResponse& response = question->response;
          if (!status.ok() && held->error.ok()) {
            held->error =
                absl::Status(status.code(), absl::StrCat("verifier ", endpoint, ": ", status.message()));
          }
          held->result.swapped += response.swapped();
          held->result.refused += response.refused();
          held->result.ended += response.ended();
          if (held->result.refusal.empty()) held->result.refusal = response.refusal();
        }
        held.reset();
        // What is captured may go with it.
        ReleaseElsewhere(std::move(question));
        absl::MutexLock lock(&calls.mutex_);
        --calls.asked_;
      });
}

}  // namespace tandem::router
