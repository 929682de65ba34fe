#include "router/serving/token_calls.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/drafters/selection.h"
#include "router/serving/request.h"

namespace tandem::router {

absl::Status Tokenize(Router& router, const RoutingSnapshot& routing, const Tenant& tenant,
                      const v1::TokenizeRequest& request, v1::TokenizeResponse& response) {
  TANDEM_ASSIGN_OR_RETURN(const size_t index, SelectModel(routing.table(), tenant, request.model()));
  const ServedModel& model = router.model(index);
  v1::GenerateRequest prompt;
  if (request.has_chat()) *prompt.mutable_chat() = request.chat();
  if (request.has_text()) prompt.set_text(request.text());
  TANDEM_RETURN_IF_ERROR(ValidateRequest(prompt));
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  if (request.plain() && request.has_chat()) {
    return absl::InvalidArgumentError("plain: only with text; a chat template adds its own special tokens");
  }
  const absl::StatusOr<TokenIds> tokens =
      request.has_chat() ? model.encoder->EncodeChat(request.chat(), kAll)
                         : model.encoder->EncodeText(request.text(), kAll, /*plain=*/request.plain());
  if (!tokens.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.has_chat() ? "chat: " : "text: ", tokens.status().message()));
  }
  router.admission().Charge(tenant, tokens->size());
  response.mutable_tokens()->mutable_ids()->Add(tokens->begin(), tokens->end());
  response.set_context_length(ContextLength(router, index));
  return absl::OkStatus();
}

absl::Status Detokenize(Router& router, const RoutingSnapshot& routing, size_t tenant_index,
                        const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response) {
  const Tenant& tenant = routing.table().tenants[tenant_index];
  TANDEM_ASSIGN_OR_RETURN(const size_t index, SelectModel(routing.table(), tenant, request.model()));
  const ServedModel& model = router.model(index);
  const auto& ids = request.tokens().ids();
  if (static_cast<size_t>(ids.size()) > kMaxDetokenized) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: ", ids.size(), " of them, expected at most ", kMaxDetokenized));
  }
  for (const uint32_t id : ids) {
    if (id >= static_cast<uint32_t>(model.vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens: found ", id, ", expected token ids below ", model.vocab_size));
    }
  }
  response.set_text(model.encoder->Decode(TokenIds(ids.begin(), ids.end()), request.skip_special_tokens()));
  return absl::OkStatus();
}

absl::Status ListModels(Router& router, const RoutingSnapshot& routing, size_t tenant_index,
                        v1::ListModelsResponse& response) {
  const RoutingTable& table = routing.table();
  const Tenant& tenant = table.tenants[tenant_index];
  const absl::StatusOr<size_t> first = SelectModel(table, tenant, "");
  if (first.ok()) *response.add_models() = DescribeModel(router, tenant, *first);
  for (size_t i = 0; i < table.models.size(); ++i) {
    if (!first.ok() || i != *first) *response.add_models() = DescribeModel(router, tenant, i);
  }
  return absl::OkStatus();
}

void TakeAdapterForModel(Router& router, const RoutingTable& table, const Tenant& tenant,
                         v1::GenerateRequest& request) {
  if (request.model().empty() || request.has_adapter() || SelectModel(table, tenant, request.model()).ok()) {
    return;
  }
  if (!MayUseAdapter(tenant, request.model())) return;
  for (const size_t model : tenant.models) {
    for (const v1::AdapterInfo& adapter : router.verifiers().Adapters(model)) {
      if (adapter.name() != request.model()) continue;
      request.set_adapter(request.model());
      request.set_model(table.models[model].name);
      return;
    }
  }
}

uint32_t ContextLength(Router& router, size_t model) {
  const auto context = static_cast<uint32_t>(std::max(router.model(model).context_length, 0));
  const std::optional<uint64_t> most = router.verifiers().MostTokens(model);
  return most.has_value() ? static_cast<uint32_t>(std::min<uint64_t>(*most, context)) : context;
}

v1::ModelInfo DescribeModel(Router& router, const Tenant& tenant, size_t index) {
  const ServedModel& model = router.model(index);
  v1::ModelInfo described;
  described.set_name(model.name);
  described.set_vocabulary_fingerprint(model.vocabulary_fingerprint);
  described.set_vocabulary_size(static_cast<uint32_t>(model.vocab_size));
  described.set_context_length(ContextLength(router, index));
  described.set_architecture(model.architecture);
  for (const v1::AdapterInfo& adapter : router.verifiers().Adapters(index)) {
    if (MayUseAdapter(tenant, adapter.name())) *described.add_adapters() = adapter;
  }
  return described;
}

}  // namespace tandem::router
