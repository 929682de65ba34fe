#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/alarm.h"
#include "router/serving/client_stream.h"
#include "router/serving/generate_call.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// The outputs of one request (GenerateRequest.num_outputs), each a GenerateCall, on one client's stream. To
// that stream it is what a single GenerateCall would be.
//
//   GenerateCall, output 0 --.
//   GenerateCall, output 1 ---> OutputsCall --> ClientStream
//   ...                    --'
//
// Output 0 runs the request as it came; output n uses its seed plus n. The others start once output 0 has its
// first tokens: then the prompt is in the verifier's prefix cache, and the router sends them to that verifier
// because the prefix is the same, so the prompt is computed once. Each output is admitted, charged, drafted
// for and retried on its own. The first output that fails ends the stream with its status, and the others are
// cancelled. A client that is gone cancels all.
//
// Lock order: a GenerateCall's mutex before mutex_. No GenerateCall is called with mutex_ held. Ownership:
// shared by the client's side (until OnDone) and by alarms.
class OutputsCall final : public std::enable_shared_from_this<OutputsCall> {
 public:
  // As GenerateCall's methods.
  static std::shared_ptr<OutputsCall> Create(Router& router, const CallHead& head, ClientStream& client);
  void Start(absl::FunctionRef<absl::StatusOr<GenerateCall::Request>()> read);
  void OnWriteDone(bool ok);
  void OnCancel();
  void OnDone();

 private:
  // The client's side of one output.
  struct Output final : ClientStream {
    Output(OutputsCall& its_owner, uint32_t its_index) : owner(its_owner), index(its_index) {}
    void Write(const v1::GenerateResponse& event) override { owner.OnEvent(*this, event); }
    void Finish(const absl::Status& status) override { owner.OnFinish(status); }
    void Cancel() override { owner.client_.Cancel(); }

    OutputsCall& owner;
    const uint32_t index;
    std::shared_ptr<GenerateCall> call;
  };
  struct Queued {
    Output* output = nullptr;
    const v1::GenerateResponse* event = nullptr;
  };
  using Calls = std::vector<std::shared_ptr<GenerateCall>>;

  OutputsCall(Router& router, const CallHead& head, ClientStream& client)
      : router_(router), client_(client), head_(head) {}

  // With the call's mutex held.
  void OnEvent(Output& output, const v1::GenerateResponse& event);
  void OnFinish(const absl::Status& status);

  void StartOthers();
  void CancelAll();
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishIfOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs a method of this soon, without any lock.
  void Soon(grpc::Alarm& alarm, void (OutputsCall::*method)());

  Router& router_;
  ClientStream& client_;  // Until its Finish.

  absl::Mutex mutex_;
  CallHead head_ ABSL_GUARDED_BY(mutex_);  // Its token only until all outputs are started.
  std::vector<std::unique_ptr<Output>> outputs_ ABSL_GUARDED_BY(mutex_);
  GenerateCall::Request request_ ABSL_GUARDED_BY(mutex_);  // Of several outputs.
  uint32_t num_others_ ABSL_GUARDED_BY(mutex_) = 0;        // To be started.
  uint32_t left_ ABSL_GUARDED_BY(mutex_) = 1;              // Outputs that have not ended.
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;              // Of output 0, once it has started.
  // The front one is being written while writing_.
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  v1::GenerateResponse numbered_ ABSL_GUARDED_BY(mutex_);  // It, of another output than 0.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;          // The client: nothing more is written.
  bool others_begun_ ABSL_GUARDED_BY(mutex_) = false;  // They count as left.
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;     // No outputs are started, and none continues.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // Of the first that failed.
  grpc::Alarm start_;
  grpc::Alarm cancel_;
};

}  // namespace tandem::router
