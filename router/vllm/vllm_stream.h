#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "router/serving/client_stream.h"
#include "router/serving/generate_call.h"
#include "router/serving/outputs_call.h"
#include "router/serving/router.h"
#include "router/vllm/vllm_wire.h"

namespace tandem::router {

// Running generations, by tenant and the client's request id, which need not be unique. Thread-safe.
class AbortableCalls {
 public:
  using Key = std::pair<std::string, std::string>;  // Tenant, request id.
  using Entry = std::multimap<Key, std::shared_ptr<OutputsCall>>::iterator;

  Entry Add(Key key, std::shared_ptr<OutputsCall> call);
  void Remove(Entry entry);
  // Cancels all generations of the key.
  void Abort(const Key& key);

 private:
  absl::Mutex mutex_;
  std::multimap<Key, std::shared_ptr<OutputsCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

// The gRPC side of a VllmEngine.Generate call: turns the events of an OutputsCall into vLLM's responses.
// Owned by gRPC from Start to OnDone.
class VllmStream final : public grpc::ServerWriteReactor<engine::GenerateResponse>, public ClientStream {
 public:
  // Serves a call whose request is `bytes`; the result goes to gRPC. `calls` outlives the call and lists it
  // while it runs.
  static grpc::ServerWriteReactor<engine::GenerateResponse>* Start(Router& router, AbortableCalls& calls,
                                                                   grpc::CallbackServerContext* context,
                                                                   const grpc::ByteBuffer& bytes);

 private:
  VllmStream(Router& router, AbortableCalls& calls, grpc::CallbackServerContext& context);
  absl::StatusOr<GenerateCall::Request> Read(const grpc::ByteBuffer& bytes);

  void Write(const v1::GenerateResponse& event) override;
  void Finish(const absl::Status& status) override;
  void Cancel() override { context_.TryCancel(); }

  void OnWriteDone(bool ok) override { call_->OnWriteDone(ok); }
  void OnCancel() override { call_->OnCancel(); }
  void OnDone() override;

  Router& router_;
  AbortableCalls& calls_;
  grpc::CallbackServerContext& context_;  // Until gRPC's Finish.
  const std::shared_ptr<OutputsCall> call_;
  std::optional<AbortableCalls::Entry> entry_;
  std::optional<VllmAnswer> answer_;   // Once the request is read.
  engine::GenerateResponse response_;  // That is being written.
  // Calls OnWriteDone from another thread for an event without a response.
  grpc::Alarm taken_;
};

}  // namespace tandem::router
