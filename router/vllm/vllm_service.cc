#include "router/vllm/vllm_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "router/drafters/selection.h"
#include "router/serving/readiness_watch.h"
#include "router/serving/token_calls.h"
#include "router/serving/worker_call.h"
#include "router/tenants/call_metadata.h"

namespace tandem::router {
namespace {

// Of the service's methods, in the order of the protocol.
constexpr int kGenerate = 0;

grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

VllmService::VllmService(Router& router, absl::Time started_at) : router_(router), started_at_(started_at) {
  using Streaming =
      grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, engine::GenerateResponse>;
  MarkMethodRawCallback(
      kGenerate, new Streaming([this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
        last_request_ = absl::ToUnixMicros(router_.clock().Now()) * 1e-6;
        return VllmStream::Start(router_, calls_, context, *request);
      }));
}

grpc::ServerUnaryReactor* VllmService::HealthCheck(grpc::CallbackServerContext* context,
                                                   const engine::HealthCheckRequest*,
                                                   engine::HealthCheckResponse* response) {
  std::vector<std::string> unserved;
  for (const Readiness::Model& model : ModelsOf(router_)) {
    if (model.wanted && !model.served) unserved.push_back(model.name);
  }
  response->set_healthy(unserved.empty());
  // Strangers may ask: how many, and not which.
  if (!unserved.empty()) response->set_message(absl::StrCat(unserved.size(), " models have no verifier"));
  return AnswerNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* VllmService::Abort(grpc::CallbackServerContext* context,
                                             const engine::AbortRequest* request, engine::AbortResponse*) {
  const std::shared_ptr<const RoutingSnapshot> routing = router_.snapshot();
  const absl::StatusOr<size_t> tenant = AuthenticateCall(routing->tenants(), context->client_metadata());
  if (tenant.ok()) {
    for (const std::string& id : request->request_ids()) {
      calls_.Abort({routing->table().tenants[*tenant].name, id});
    }
  }
  return AnswerNow(context, tenant.status());
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(grpc::CallbackServerContext* context,
                                                    const engine::GetModelInfoRequest*,
                                                    engine::GetModelInfoResponse* response) {
  return AnswerOnWorker(
      router_, context, 0, [this, response](const RoutingSnapshot& routing, size_t tenant) -> absl::Status {
        const RoutingTable& table = routing.table();
        TANDEM_ASSIGN_OR_RETURN(const size_t index, SelectModel(table, table.tenants[tenant], ""));
        const ServedModel& model = router_.model(index);
        response->set_model_path(model.name);
        response->set_served_model_name(model.name);
        response->set_is_generation(true);
        response->set_max_context_length(ContextLength(router_, index));
        response->set_vocab_size(static_cast<uint32_t>(model.vocab_size));
        response->add_architectures(model.architecture);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(grpc::CallbackServerContext* context,
                                                     const engine::GetServerInfoRequest*,
                                                     engine::GetServerInfoResponse* response) {
  const absl::StatusOr<size_t> tenant =
      AuthenticateCall(router_.snapshot()->tenants(), context->client_metadata());
  if (tenant.ok()) {
    response->set_active_requests(router_.metrics().running() + router_.metrics().waiting());
    response->set_last_receive_timestamp(last_request_);
    response->set_uptime_seconds(absl::ToDoubleSeconds(router_.clock().Now() - started_at_));
    response->set_server_type("vllm-grpc");
    response->set_data_parallel_size(1);
  }
  return AnswerNow(context, tenant.status());
}

}  // namespace tandem::router
