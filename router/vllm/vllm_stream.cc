#include "router/vllm/vllm_stream.h"

#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "router/serving/generation_stream.h"
#include "router/serving/message_wire.h"
#include "router/tenants/call_metadata.h"

namespace tandem::router {

AbortableCalls::Entry AbortableCalls::Add(Key key, std::shared_ptr<OutputsCall> call) {
  absl::MutexLock lock(&mutex_);
  return calls_.emplace(std::move(key), std::move(call));
}

void AbortableCalls::Remove(Entry entry) {
  // Let go of without the lock.
  std::shared_ptr<OutputsCall> call;
  absl::MutexLock lock(&mutex_);
  call = std::move(entry->second);
  calls_.erase(entry);
}

void AbortableCalls::Abort(const Key& key) {
  std::vector<std::shared_ptr<OutputsCall>> found;
  {
    absl::MutexLock lock(&mutex_);
    const auto [first, last] = calls_.equal_range(key);
    for (auto it = first; it != last; ++it) found.push_back(it->second);
  }
  for (const std::shared_ptr<OutputsCall>& call : found) call->OnCancel();
}

VllmStream::VllmStream(Router& router, AbortableCalls& calls, grpc::CallbackServerContext& context)
    : router_(router),
      calls_(calls),
      context_(context),
      call_(OutputsCall::Create(router, CallHeadOf(context), *this)) {}

grpc::ServerWriteReactor<engine::GenerateResponse>* VllmStream::Start(Router& router, AbortableCalls& calls,
                                                                      grpc::CallbackServerContext* context,
                                                                      const grpc::ByteBuffer& bytes) {
  auto* const stream = new VllmStream(router, calls, *context);
  stream->call_->Start([&] { return stream->Read(bytes); });
  return stream;
}

absl::StatusOr<GenerateCall::Request> VllmStream::Read(const grpc::ByteBuffer& bytes) {
  TANDEM_ASSIGN_OR_RETURN(const auto asked, ParseMessage<engine::GenerateRequest>(bytes));
  TANDEM_ASSIGN_OR_RETURN(v1::GenerateRequest request, RequestOf(*asked));
  answer_.emplace(*asked);
  if (!asked->request_id().empty()) {
    const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
    TANDEM_ASSIGN_OR_RETURN(const size_t tenant,
                            AuthenticateCall(routing->tenants(), context_.client_metadata()));
    entry_ = calls_.Add({routing->table().tenants[tenant].name, asked->request_id()}, call_);
  }
  return std::make_shared<const v1::GenerateRequest>(std::move(request));
}

void VllmStream::Write(const v1::GenerateResponse& event) {
  std::optional<engine::GenerateResponse> response = answer_->OnEvent(event);
  if (response.has_value()) {
    response_ = *std::move(response);
    StartWrite(&response_);
  } else {
    taken_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [call = call_](bool) { call->OnWriteDone(true); });
  }
}

void VllmStream::Finish(const absl::Status& status) {
  grpc::ServerWriteReactor<engine::GenerateResponse>::Finish(ToGrpcStatus(WithVllmNames(status)));
}

void VllmStream::OnDone() {
  if (entry_.has_value()) calls_.Remove(*entry_);
  call_->OnDone();
  delete this;
}

}  // namespace tandem::router
