#include "verifier/rpc/service.h"

#include <chrono>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "common/rpc/trace_metadata.h"
#include "verifier/rpc/constraint_wire.h"

namespace tandem {

namespace {

constexpr int kMostAlternates = 8;

void Describe(const v1::VerifierGenerateRequest& request, const std::string& model, Span& span) {
  if (!span.recording()) return;
  span.SetCall("tandem.v1.Verifier", "Generate");
  span.Set("gen_ai.provider.name", "tandem");
  span.Set("gen_ai.response.model", model);
  span.Set("tandem.request_id", request.request_id());
  span.Set("tandem.tenant", request.tenant());
  if (!request.adapter().empty()) span.Set("tandem.adapter", request.adapter());
  span.Set("tandem.emitted_tokens", request.emitted().ids_size());
}

// The end of a call that the engine never sees.
void EndAtOnce(absl::StatusCode code, Span& span) {
  span.SetStatus(code);
  span.End(absl::Now());
}

}  // namespace

absl::StatusOr<DrafterBinding> VerifierService::BindingOf(const v1::DrafterTarget& target,
                                                          absl::string_view field) {
  if (target.endpoint().empty() || target.draft_model().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": expected endpoint and draft_model"));
  }
  DrafterBinding binding{
      .name = target.name(), .draft_model = target.draft_model(), .trusted = target.trusted()};
  const absl::Status bound = loop_.load()->BindEndpoint(target.endpoint(), &binding);
  if (absl::IsInvalidArgument(bound)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".endpoint: ", bound.message()));
  }
  TANDEM_RETURN_IF_ERROR(bound);
  return binding;
}

absl::Status VerifierService::CheckServing() const {
  if (draining_) return absl::UnavailableError("the verifier is shutting down");
  if (loop_ == nullptr) return absl::UnavailableError("the verifier is still loading its model");
  return absl::OkStatus();
}

absl::StatusOr<SessionRequest> VerifierService::MakeSession(const v1::VerifierGenerateRequest& request,
                                                            absl::Time deadline, const TraceContext& trace) {
  TANDEM_RETURN_IF_ERROR(CheckServing());
  TANDEM_ASSIGN_OR_RETURN(SessionRequest session, SessionRequestFromProto(request, *target_, deadline));
  if (!v1::SpeculationMode_IsValid(request.speculation().mode())) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.mode: ", request.speculation().mode(), ", expected OFF, ON or unset"));
  }
  if (request.speculation().mode() == v1::SPECULATION_MODE_OFF || session.max_tokens == 0) return session;
  if (!request.has_drafter()) {
    if (request.speculation().mode() == v1::SPECULATION_MODE_ON && !target_->drafts_locally &&
        session.prediction == nullptr) {
      return absl::FailedPreconditionError(
          "speculation.mode: ON, but no drafter was named, and this verifier does not draft by itself "
          "(--local-drafter none)");
    }
    return session;
  }
  if (request.alternates_size() > kMostAlternates) {
    return absl::InvalidArgumentError(
        absl::StrCat("alternates: ", request.alternates_size(), ", expected at most ", kMostAlternates));
  }
  if (SamplesDrafts(target_->verification_rule, session.sampling) && !request.drafter().trusted()) {
    const absl::Status untrusted = UntrustedDrafter(target_->verification_rule);
    if (request.speculation().mode() == v1::SPECULATION_MODE_ON) return untrusted;
    // It is still bound, so that the request's statistics say why there were no drafts.
    LogWarning("request runs without drafts", {{"request_id", request.request_id()},
                                               {"trace_id", TraceIdText(trace)},
                                               {"drafter", request.drafter().name()},
                                               {"reason", std::string(untrusted.message())}});
  }
  std::vector<DrafterBinding> bindings;
  absl::Status lost;
  const auto bind = [&](const v1::DrafterTarget& target, const std::string& field) {
    absl::StatusOr<DrafterBinding> binding = BindingOf(target, field);
    if (binding.ok()) bindings.push_back(*std::move(binding));
    if (absl::IsInvalidArgument(binding.status())) return binding.status();
    if (!binding.ok()) {  // A drafter's troubles cost speed, never a request (law 3).
      LogWarning("request runs without a drafter", {{"request_id", request.request_id()},
                                                    {"trace_id", TraceIdText(trace)},
                                                    {"reason", std::string(binding.status().message())}});
      lost.Update(binding.status());
    }
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(bind(request.drafter(), "drafter"));
  for (int i = 0; i < request.alternates_size(); ++i) {
    TANDEM_RETURN_IF_ERROR(bind(request.alternates(i), absl::StrCat("alternates[", i, "]")));
  }
  if (bindings.empty()) {
    if (request.speculation().mode() == v1::SPECULATION_MODE_ON) {
      return absl::FailedPreconditionError(
          absl::StrCat("speculation.mode: ON, but nothing could draft: ", lost.message()));
    }
    return session;
  }
  if (request.has_partner()) {
    if (request.partner().endpoint() == request.drafter().endpoint() &&
        request.partner().draft_model() == request.drafter().draft_model()) {
      return absl::InvalidArgumentError("partner: the drafter itself, expected another one");
    }
    absl::StatusOr<DrafterBinding> partner = BindingOf(request.partner(), "partner");
    if (absl::IsInvalidArgument(partner.status())) return partner.status();
    if (partner.ok()) {
      session.partner = *std::move(partner);
    } else {
      LogWarning("request runs without a partner", {{"request_id", request.request_id()},
                                                    {"trace_id", TraceIdText(trace)},
                                                    {"reason", std::string(partner.status().message())}});
    }
  }
  session.drafter = std::move(bindings.front());
  session.alternates.assign(std::make_move_iterator(bindings.begin() + 1),
                            std::make_move_iterator(bindings.end()));
  return session;
}

absl::StatusOr<std::optional<ConstraintSource>> VerifierService::MakeConstraint(
    const v1::VerifierGenerateRequest& request) const {
  if (request.has_constraint() && constraints_ == nullptr) {
    return absl::FailedPreconditionError("constraint: this verifier does not support structured output");
  }
  return ConstraintFromProto(request, target_->constraints);
}

void VerifierService::BeginConstrained(EngineLoop* loop, SessionId id, SessionRequest session,
                                       GenerateCall call,
                                       absl::StatusOr<ConstraintCompiler::Compiled> constraint) {
  call.trace.OnCompiled(constraint.status().code(), absl::Now());
  absl::Status status = constraint.ok() ? Constrain(*std::move(constraint), *target_, &session)
                                        : ConstraintError(constraint.status());
  // It was called before the server began to shut down.
  status.Update(CheckServing());
  if (!status.ok()) {
    call.trace.OnFinished(status, SessionSummary{}, absl::Now());
    call.stream->Finish(status);
    return;
  }
  const std::shared_ptr<GenerateStream> stream = call.stream;
  loop->Begin(id, std::move(session), std::move(call));
  // Who cancelled before the loop knew of the session was not heard there.
  if (stream->closed()) loop->Cancel(id, absl::CancelledError("the caller disconnected"));
}

absl::StatusOr<DrafterSwap> VerifierService::MakeSwap(const v1::SwapDrafterRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckServing());
  if (request.tenant().empty() == (request.request_ids_size() == 0)) {
    return absl::InvalidArgumentError("request_ids, tenant: expected exactly one of the two");
  }
  DrafterSwap swap{.request_ids = {request.request_ids().begin(), request.request_ids().end()},
                   .tenant = request.tenant(),
                   .from = request.from()};
  TANDEM_ASSIGN_OR_RETURN(swap.to, BindingOf(request.to(), "to"));
  return swap;
}

grpc::ServerUnaryReactor* VerifierService::SwapDrafter(grpc::CallbackServerContext* context,
                                                       const v1::SwapDrafterRequest* request,
                                                       v1::SwapDrafterResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status asked =
      Swap(*request, [reactor, response](const absl::StatusOr<DrafterSwapResult>& result) {
        if (result.ok()) *response = SwapResultToProto(*result);
        reactor->Finish(ToGrpcStatus(result.status()));
      });
  if (!asked.ok()) reactor->Finish(ToGrpcStatus(asked));
  return reactor;
}

absl::Status VerifierService::Swap(const v1::SwapDrafterRequest& request, OnSwapped done) {
  TANDEM_ASSIGN_OR_RETURN(DrafterSwap swap, MakeSwap(request));
  LogInfo("swapping drafters", {{"tenant", request.tenant()},
                                {"requests", absl::StrCat(request.request_ids_size())},
                                {"from", request.from()},
                                {"to", request.to().name()}});
  loop_.load()->SwapDrafter(std::move(swap), std::move(done));
  return absl::OkStatus();
}

v1::SwapDrafterResponse SwapResultToProto(const DrafterSwapResult& result) {
  v1::SwapDrafterResponse response;
  response.set_swapped(result.swapped);
  response.set_refused(result.refused);
  response.set_ended(result.ended);
  response.set_refusal(result.refusal);
  return response;
}

std::shared_ptr<void> VerifierService::Hold() {
  {
    absl::MutexLock lock(&calls_->mutex);
    ++calls_->held;
  }
  return std::shared_ptr<void>(nullptr, [calls = calls_](std::nullptr_t) {
    absl::MutexLock lock(&calls->mutex);
    --calls->held;
  });
}

bool VerifierService::AwaitNoCalls(absl::Duration timeout) {
  Calls& calls = *calls_;
  const auto none = [&calls]() ABSL_SHARED_LOCKS_REQUIRED(calls.mutex) { return calls.held == 0; };
  absl::MutexLock lock(&calls.mutex);
  return calls.mutex.AwaitWithTimeout(absl::Condition(&none), timeout);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* VerifierService::Generate(
    grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) {
  const absl::Time arrival = absl::Now();
  Span span =
      tracer_.StartServer("tandem.v1.Verifier/Generate", TraceContextOf(context->client_metadata()), arrival);
  Describe(*request, target_->name, span);
  EngineLoop* const loop = loop_;
  const SessionId id = loop == nullptr ? SessionId{} : loop->NewSession();
  std::shared_ptr<GenerateStream> stream = GenerateStream::Create();
  // Held until the call is over for gRPC too.
  auto* reactor = stream->Start({.on_cancelled = [loop, id, held = Hold()](absl::Status reason) {
    if (loop != nullptr) loop->Cancel(id, std::move(reason));
  }});
  const bool bounded = context->deadline() != std::chrono::system_clock::time_point::max();
  // By the loop that was there when the call came; there may be one by now.
  absl::StatusOr<SessionRequest> session = absl::UnavailableError("the verifier is still loading its model");
  if (loop != nullptr) {
    // From here on by the loop's clock, which cannot be set.
    const absl::Duration left = absl::FromChrono(context->deadline()) - arrival;
    session =
        MakeSession(*request, bounded ? loop->clock().Now() + left : absl::InfiniteFuture(), span.context());
  }
  absl::StatusOr<std::optional<ConstraintSource>> constraint = MakeConstraint(*request);
  if (!session.ok() || !constraint.ok()) {
    const absl::Status& refused = session.ok() ? constraint.status() : session.status();
    EndAtOnce(refused.code(), span);
    stream->Finish(refused);
    return reactor;
  }
  GenerateCall call{.stream = std::move(stream),
                    .with_logprobs = session->num_logprobs >= 0,
                    .arithmetic = session->arithmetic,
                    .tenant = request->tenant(),
                    .request_id = request->request_id()};
  v1::GenerationStarted& started = *call.started.mutable_started();
  started.set_request_id(request->request_id());
  started.set_model(target_->name);
  started.set_seed(session->sampling.seed);
  started.set_prompt_tokens(static_cast<uint32_t>(session->prompt.size()));
  started.set_max_tokens(session->max_tokens);
  if (session->adapter != nullptr) started.set_adapter(session->adapter->name);
  if (session->replayed_end.has_value()) {  // Nothing is left to generate.
    SessionSummary summary{.end = *std::move(session->replayed_end)};
    summary.prompt_tokens = static_cast<uint32_t>(session->prompt.size());
    summary.output_tokens = session->output->num_tokens();
    EndAtOnce(absl::StatusCode::kOk, span);
    call.stream->Write(std::move(call.started));
    call.stream->Write(FinishedToProto(summary));
    call.stream->Finish(absl::OkStatus());
    return reactor;
  }
  call.drafting =
      metrics_->DraftingOf(request->tenant(), session->drafter.has_value() ? session->drafter->name : "");
  call.wire = call.drafting;
  RoundDrafters drafters;
  if (session->drafter.has_value()) drafters.drafter = session->drafter->name;
  call.speculation = metrics_->SpeculationOf(request->tenant(), drafters);
  if (session->drafter.has_value()) {
    started.set_drafter(session->drafter->name);
    if (session->partner.has_value()) started.set_partner(session->partner->name);
    call.calibration = metrics_->CalibrationOf(session->drafter->name);
  }
  call.trace = SessionTrace(std::move(span), arrival);
  if (!constraint->has_value()) {
    loop->Begin(id, *std::move(session), std::move(call));
    return reactor;
  }
  const absl::Time deadline = session->deadline;
  call.trace.OnConstraint(arrival);
  if (request->constraint().structural_tags().only_tags() && !target_->defaults.eos_tokens.empty())
    session->end_instead = target_->defaults.eos_tokens.front();
  session->wire_constraint = std::make_shared<const std::string>(request->constraint().SerializeAsString());
  constraints_->Compile(
      **constraint, request->tenant(), deadline,
      [this, loop, id, held = Hold(), session = *std::move(session),
       call = std::move(call)](absl::StatusOr<ConstraintCompiler::Compiled> compiled) mutable {
        BeginConstrained(loop, id, std::move(session), std::move(call), std::move(compiled));
      });
  return reactor;
}

}  // namespace tandem
