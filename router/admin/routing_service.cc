#include "router/admin/routing_service.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "router/drafters/selection.h"
#include "router/serving/request.h"
#include "router/serving/worker_call.h"

namespace tandem::router {
namespace {

TokenIds PromptTokens(const v1::VerifierGenerateRequest& prepared) {
  return TokenIds(prepared.prompt().ids().begin(), prepared.prompt().ids().end());
}

absl::Status AtSample(int index, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("samples[", index, "]: ", status.message()));
}

// `tokenized` as of PrepareRequest.
absl::StatusOr<CalibrationPrompt> ReadSample(const v1::CalibrationSample& sample, const ServedModel& model,
                                             uint64_t& tokenized) {
  v1::GenerateRequest request;
  if (sample.has_chat()) {
    *request.mutable_chat() = sample.chat();
  } else {
    request.set_text(sample.text());
  }
  TANDEM_RETURN_IF_ERROR(ValidateRequest(request));
  TANDEM_ASSIGN_OR_RETURN(const v1::VerifierGenerateRequest prepared,
                          PrepareRequest(
                              request, model, [] { return uint64_t{0}; }, tokenized));
  CalibrationPrompt prompt{.tokens = PromptTokens(prepared), .outcomes = {}};
  if (sample.outcomes_size() > RoutingService::kMaxOutcomes) {
    return absl::InvalidArgumentError(absl::StrCat("outcomes: ", sample.outcomes_size(),
                                                   ", expected at most ", RoutingService::kMaxOutcomes));
  }
  for (const v1::CalibrationOutcome& outcome : sample.outcomes()) {
    if (!(outcome.acceptance() >= 0.0 && outcome.acceptance() <= 1.0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("outcomes: acceptance ", outcome.acceptance(), ", expected a share from 0 to 1"));
    }
    prompt.outcomes.push_back(
        {.drafter = outcome.drafter(), .acceptance = outcome.acceptance(), .trials = outcome.trials()});
  }
  return prompt;
}

}  // namespace

grpc::ServerUnaryReactor* RoutingService::ExplainChoice(grpc::CallbackServerContext* context,
                                                        const v1::ExplainChoiceRequest* request,
                                                        v1::ChoiceExplanation* response) {
  return AnswerOnWorker(
      router_, context, request->ByteSizeLong(),
      [this, request = request->request(), response](const RoutingSnapshot& routing, size_t tenant) {
        return Explain(routing, tenant, request, response);
      });
}

absl::Status RoutingService::Explain(const RoutingSnapshot& routing, size_t tenant_index,
                                     const v1::GenerateRequest& request, v1::ChoiceExplanation* response) {
  const RoutingTable& table = routing.table();
  const Tenant& tenant = table.tenants[tenant_index];
  TANDEM_RETURN_IF_ERROR(ValidateRequest(request));
  TANDEM_ASSIGN_OR_RETURN(const size_t model, SelectModel(table, tenant, request.model()));
  TANDEM_ASSIGN_OR_RETURN(DrafterSelection selection, SelectDrafter(table, tenant, request.speculation(), "",
                                                                    router_.CanDraft(model, tenant)));
  uint64_t tokenized = 0;
  const absl::StatusOr<v1::VerifierGenerateRequest> prepared = PrepareRequest(
      request, router_.model(model), [] { return uint64_t{0}; }, tokenized);
  // Ids are looked at like text that was tokenized.
  router_.admission().Charge(tenant, prepared.ok() ? prepared->prompt().ids_size() : tokenized);
  if (!prepared.ok()) return prepared.status();
  const bool open = !selection.candidates.empty();
  // Where the choice is not open, what it would rest on is told all the same.
  std::vector<std::string> drafters;
  for (size_t drafter : open ? selection.candidates : tenant.allowed_drafters) {
    drafters.push_back(table.drafters[drafter].name);
  }
  *response = router_.chooser().Explain(model, PromptTokens(*prepared), tenant.name, drafters);
  for (size_t drafter : selection.unfit) response->add_unfit_drafters(table.drafters[drafter].name);
  if (open) return absl::OkStatus();
  response->set_drafter(selection.drafter.has_value() ? table.drafters[*selection.drafter].name : "");
  response->set_reason(std::string(selection.reason.data(), selection.reason.size()));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* RoutingService::Calibrate(grpc::CallbackServerContext* context,
                                                    const v1::CalibrateRequest* request,
                                                    v1::CalibrateResponse* response) {
  return AnswerOnWorker(router_, context, request->ByteSizeLong(),
                        [this, request = *request, response](const RoutingSnapshot& routing, size_t tenant) {
                          return Learn(routing, tenant, request, response);
                        });
}

absl::Status RoutingService::Learn(const RoutingSnapshot& routing, size_t tenant_index,
                                   const v1::CalibrateRequest& request, v1::CalibrateResponse* response) {
  const RoutingTable& table = routing.table();
  const Tenant& tenant = table.tenants[tenant_index];
  if (!tenant.admin) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant \"", tenant.name, "\" may not calibrate; it lacks `admin: true`"));
  }
  TANDEM_ASSIGN_OR_RETURN(const size_t model, SelectModel(table, tenant, request.model()));
  if (request.samples_size() > kMaxSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples: ", request.samples_size(), ", expected at most ", kMaxSamples));
  }
  std::vector<CalibrationPrompt> prompts;
  for (int i = 0; i < request.samples_size(); ++i) {
    uint64_t tokenized = 0;
    absl::StatusOr<CalibrationPrompt> prompt =
        ReadSample(request.samples(i), router_.model(model), tokenized);
    router_.admission().Charge(tenant, tokenized);
    if (!prompt.ok()) return AtSample(i, prompt.status());
    for (const CalibrationPrompt::Outcome& outcome : prompt->outcomes) {
      // Names become keys of what is kept: only configured ones.
      v1::SpeculationOptions options;
      options.set_drafter(outcome.drafter);
      const absl::Status known = SelectDrafter(table, tenant, options).status();
      if (!known.ok()) return AtSample(i, known);
      if (outcome.drafter.empty()) {
        return AtSample(i, absl::InvalidArgumentError("outcomes: a drafter without a name"));
      }
    }
    prompts.push_back(*std::move(prompt));
  }
  using Errors = std::map<std::string, double>;
  TANDEM_ASSIGN_OR_RETURN(const Errors errors, router_.chooser().Calibrate(model, prompts));
  response->mutable_held_out_error()->insert(errors.begin(), errors.end());
  *response->mutable_state() = router_.chooser().Save();
  LogInfo("calibrated", {{"tenant", tenant.name},
                         {"model", router_.model(model).name},
                         {"prompts", absl::StrCat(prompts.size())}});
  return absl::OkStatus();
}

}  // namespace tandem::router
