#include "router/serving/generation_stream.h"

#include <chrono>

#include "absl/time/time.h"
#include "common/rpc/status.h"
#include "common/rpc/trace_metadata.h"
#include "router/tenants/call_metadata.h"

namespace tandem::router {
namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

}  // namespace

CallHead CallHeadOf(const grpc::CallbackServerContext& context) {
  return {.authorization = AuthorizationOf(context.client_metadata()),
          .trace = TraceContextOf(context.client_metadata()),
          .deadline = DeadlineOf(context)};
}

GenerationStream::GenerationStream(Router& router, grpc::CallbackServerContext& context)
    : context_(context), call_(OutputsCall::Create(router, CallHeadOf(context), *this)) {}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationStream::Start(
    Router& router, grpc::CallbackServerContext* context,
    absl::FunctionRef<absl::StatusOr<GenerateCall::Request>()> read) {
  auto* const stream = new GenerationStream(router, *context);
  stream->call_->Start(read);
  return stream;
}

void GenerationStream::Finish(const absl::Status& status) {
  grpc::ServerWriteReactor<v1::GenerateResponse>::Finish(ToGrpcStatus(status));
}

void GenerationStream::OnDone() {
  call_->OnDone();
  delete this;
}

}  // namespace tandem::router
