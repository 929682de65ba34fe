#include "router/service.h"

#include <memory>
#include <string>

#include "common/config/version.h"
#include "router/authentication.h"
#include "router/generate_call.h"
#include "router/readiness_watch.h"

namespace tandem::router {
namespace {

v1::ServerInfo DescribeRouter(Router& router, absl::Time started_at) {
  v1::ServerInfo info;
  info.set_role(v1::SERVER_ROLE_ROUTER);
  info.set_version(std::string(Version().data(), Version().size()));
  info.set_uptime_seconds(absl::ToDoubleSeconds(router.clock().Now() - started_at));
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  for (size_t i = 0; i < routing->table().models.size(); ++i) {
    const ServedModel& model = router.model(i);
    v1::ModelInfo& described = *info.add_models();
    described.set_name(model.name);
    described.set_vocabulary_fingerprint(model.vocabulary_fingerprint);
    described.set_vocabulary_size(static_cast<uint32_t>(model.vocab_size));
    described.set_context_length(static_cast<uint32_t>(model.context_length));
    described.set_architecture(model.architecture);
  }
  for (const Drafter& drafter : routing->table().drafters) {
    if (drafter.absent) continue;
    v1::DrafterTarget& described = *info.add_drafters();
    described.set_name(drafter.name);
    described.set_endpoint(drafter.endpoint);
    described.set_draft_model(drafter.draft_model);
  }
  for (const Readiness::Model& model : ModelsOf(router)) {
    if (model.wanted && !model.served) info.add_unserved_models(model.name);
  }
  info.set_running(router.metrics().running());
  info.set_waiting(router.metrics().waiting());
  return info;
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return GenerateCall::Start(router_, context, *request);
}

std::vector<std::string> NamesOfReadiness() {
  return {"", std::string(v1::Generation::service_full_name())};
}

AdminCallbacks MakeAdminCallbacks(Router& router, absl::Time started_at) {
  return {.server_info = [&router, started_at] { return DescribeRouter(router, started_at); },
          .authorize =
              [&router](const CallMetadata& metadata) {
                return AuthenticateCall(router.snapshot()->tenants(), metadata).status();
              }};
}

}  // namespace tandem::router
