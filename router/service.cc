#include "router/service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/version.h"
#include "common/rpc/text_fields.h"
#include "router/authentication.h"
#include "router/generation_stream.h"
#include "router/readiness_watch.h"

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
    const ServedModel& model = router.model(i);
    v1::ModelInfo& described = *info.add_models();
    described.set_name(model.name);
    described.set_vocabulary_fingerprint(model.vocabulary_fingerprint);
    described.set_vocabulary_size(static_cast<uint32_t>(model.vocab_size));
    described.set_context_length(static_cast<uint32_t>(model.context_length));
    described.set_architecture(model.architecture);
  }
  DescribeDrafters(routing.table(), tenant, info);
  for (const Readiness::Model& model : ModelsOf(router)) {
    if (model.wanted && !model.served) info.add_unserved_models(model.name);
  }
  info.set_running(router.metrics().running());
  info.set_waiting(router.metrics().waiting());
  return info;
}

// InvalidArgument names the field that is not UTF-8, where that is what is wrong.
absl::StatusOr<std::shared_ptr<const v1::GenerateRequest>> ParseRequest(const grpc::ByteBuffer& bytes) {
  auto request = std::make_shared<v1::GenerateRequest>();
  grpc::ByteBuffer consumed = bytes;  // A reference to the same bytes, which parsing uses up.
  if (grpc::SerializationTraits<v1::GenerateRequest>::Deserialize(&consumed, request.get()).ok()) {
    return std::shared_ptr<const v1::GenerateRequest>(std::move(request));
  }
  grpc::Slice whole;
  std::optional<std::string> field;
  grpc::ByteBuffer again = bytes;
  if (again.DumpToSingleSlice(&whole).ok()) {
    field = FieldThatIsNotUtf8(*v1::GenerateRequest::descriptor(),
                               {reinterpret_cast<const char*>(whole.begin()), whole.size()});
  }
  if (field.has_value()) return absl::InvalidArgumentError(absl::StrCat(*field, ": not UTF-8"));
  return absl::InvalidArgumentError("the message is no tandem.v1.GenerateRequest");
}

}  // namespace

GenerationService::GenerationService(Router& router) : router_(router) {
  using Handler = grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, v1::GenerateResponse>;
  // The service's only method, as in the generated WithRawCallbackMethod_Generate, which has answers in bytes
  // too.
  MarkMethodRawCallback(
      0, new Handler([this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
        return Start(context, *request);
      }));
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Start(grpc::CallbackServerContext* context,
                                                                         const grpc::ByteBuffer& request) {
  return GenerationStream::Start(router_, context, [&request] { return ParseRequest(request); });
}

std::vector<std::string> NamesOfReadiness() {
  return {"", std::string(v1::Generation::service_full_name())};
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
