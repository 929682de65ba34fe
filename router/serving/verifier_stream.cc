#include "router/serving/verifier_stream.h"

#include <utility>

#include "common/rpc/trace_metadata.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "router/generation/generation.h"

namespace tandem::router {
namespace {

// Where services find the request's id in a call's metadata.
constexpr char kRequestIdKey[] = "tandem-request-id";

}  // namespace

VerifierStream::VerifierStream(std::unique_ptr<VerifierPool::Attempt> place, Options options)
    : place_(std::move(place)),
      options_(std::move(options)),
      stream_(Stream::Create(Generation::kReceiveWindow)) {}

VerifierStream::~VerifierStream() {
  place_.reset();
  // Harmless when it has ended by itself.
  stream_->TryCancel();
}

void VerifierStream::Start(const v1::VerifierGenerateRequest& request) {
  grpc::ClientContext& context = stream_->context();
  if (options_.deadline != absl::InfiniteFuture()) {
    context.set_deadline(absl::ToChronoTime(options_.deadline));
  }
  context.AddMetadata(kRequestIdKey, request.request_id());
  AddTraceContext(options_.trace->attempt_context(), context);
  stream_->Start(
      request,
      [verifier = &place_->verifier()](grpc::ClientContext* client, const v1::VerifierGenerateRequest* sent,
                                       grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
        verifier->stub->async()->Generate(client, sent, reactor);
      },
      {.on_message = std::exchange(options_.on_event, nullptr),
       .on_done = std::exchange(options_.on_done, nullptr)});
}

}  // namespace tandem::router
