#include "router/serving/service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/config/version.h"
#include "router/serving/generation_stream.h"
#include "router/serving/message_wire.h"
#include "router/serving/readiness_watch.h"
#include "router/serving/single_call.h"
#include "router/serving/token_calls.h"
#include "router/serving/worker_call.h"
#include "router/tenants/call_metadata.h"

namespace tandem::router {
namespace {

// The drafters that a tenant may use, by name; one that may administer the router sees all, and where they
// are.
void DescribeDrafters(const RoutingTable& table, const Tenant& tenant, v1::ServerInfo& info) {
  for (size_t i = 0; i < table.drafters.size(); ++i) {
    const Drafter& drafter = table.drafters[i];
    const std::vector<size_t>& allowed = tenant.allowed_drafters;
    if (drafter.absent) continue;
    if (!tenant.admin && std::find(allowed.begin(), allowed.end(), i) == allowed.end()) continue;
    v1::DrafterTarget& described = *info.add_drafters();
    described.set_name(drafter.name);
    described.set_draft_model(drafter.draft_model);
    if (tenant.admin) described.set_endpoint(drafter.endpoint);
  }
}

v1::ServerInfo DescribeRouter(Router& router, const RoutingSnapshot& routing, const Tenant& tenant,
                              absl::Time started_at) {
  v1::ServerInfo info;
  info.set_role(v1::SERVER_ROLE_ROUTER);
  info.set_version(std::string(Version().data(), Version().size()));
  info.set_uptime_seconds(absl::ToDoubleSeconds(router.clock().Now() - started_at));
  for (size_t i = 0; i < routing.table().models.size(); ++i) {
    *info.add_models() = DescribeModel(router, tenant, i);
  }
  DescribeDrafters(routing.table(), tenant, info);
  for (const Readiness::Model& model : ModelsOf(router)) {
    if (model.wanted && !model.served) info.add_unserved_models(model.name);
  }
  info.set_running(router.metrics().running());
  info.set_waiting(router.metrics().waiting());
  return info;
}

// engine::VllmEngine, which stands on top of this (router/vllm).
constexpr char kVllmService[] = "vllm.grpc.engine.VllmEngine";

// Of the service's methods, in the order of the protocol.
constexpr int kGenerate = 0;
constexpr int kGenerateOnce = 1;

}  // namespace

GenerationService::GenerationService(Router& router) : router_(router) {
  // As in the generated WithRawCallbackMethod_Generate, which has answers in bytes too.
  using Streaming = grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, v1::GenerateResponse>;
  using Single = grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, v1::GenerateResult>;
  MarkMethodRawCallback(
      kGenerate, new Streaming([this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
        return GenerationStream::Start(router_, context,
                                       [request] { return ParseMessage<v1::GenerateRequest>(*request); });
      }));
  MarkMethodRawCallback(
      kGenerateOnce, new Single([this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       v1::GenerateResult* result) {
        return SingleCall::Start(
            router_, context, [request] { return ParseMessage<v1::GenerateRequest>(*request); }, result);
      }));
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const v1::TokenizeRequest* request,
                                                      v1::TokenizeResponse* response) {
  return AnswerOnWorker(router_, context, request->ByteSizeLong(),
                        [this, request, response](const RoutingSnapshot& routing, size_t tenant) {
                          return router::Tokenize(router_, routing, routing.table().tenants[tenant], *request,
                                                  *response);
                        });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  return AnswerOnWorker(router_, context, request->ByteSizeLong(),
                        [this, request, response](const RoutingSnapshot& routing, size_t tenant) {
                          return router::Detokenize(router_, routing, tenant, *request, *response);
                        });
}

grpc::ServerUnaryReactor* GenerationService::ListModels(grpc::CallbackServerContext* context,
                                                        const v1::ListModelsRequest*,
                                                        v1::ListModelsResponse* response) {
  return AnswerOnWorker(router_, context, 0, [this, response](const RoutingSnapshot& routing, size_t tenant) {
    return router::ListModels(router_, routing, tenant, *response);
  });
}

std::vector<std::string> NamesOfReadiness() {
  return {"", std::string(v1::Generation::service_full_name()), kVllmService};
}

AdminCallbacks MakeAdminCallbacks(Router& router, absl::Time started_at) {
  return {.server_info_for = [&router,
                              started_at](const CallMetadata& metadata) -> absl::StatusOr<v1::ServerInfo> {
    const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
    TANDEM_ASSIGN_OR_RETURN(const size_t tenant, AuthenticateCall(routing->tenants(), metadata));
    return DescribeRouter(router, *routing, routing->table().tenants[tenant], started_at);
  }};
}

}  // namespace tandem::router
