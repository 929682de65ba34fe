#include "verifier/service.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem {

absl::StatusOr<SessionRequest> VerifierService::MakeSession(const v1::VerifierGenerateRequest& request,
                                                            absl::Time deadline) {
  if (draining_) return absl::UnavailableError("the verifier is shutting down");
  TANDEM_ASSIGN_OR_RETURN(SessionRequest session, SessionRequestFromProto(request, *target_, deadline));
  if (!v1::SpeculationMode_IsValid(request.speculation().mode())) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.mode: ", request.speculation().mode(), ", expected OFF, ON or nothing"));
  }
  if (request.speculation().mode() == v1::SPECULATION_MODE_OFF) return session;
  if (!request.has_drafter()) {
    if (request.speculation().mode() == v1::SPECULATION_MODE_ON) {
      return absl::FailedPreconditionError("speculation.mode: ON, but no drafter was named");
    }
    return session;
  }
  if (request.drafter().endpoint().empty() || request.drafter().draft_model().empty()) {
    return absl::InvalidArgumentError("drafter: endpoint and draft_model are expected");
  }
  const absl::StatusOr<LinkId> link = loop_->links().Acquire(request.drafter().endpoint());
  if (!link.ok()) {  // A drafter's troubles cost speed, never a request (law 3).
    LogWarning("a request goes undrafted", {{"reason", std::string(link.status().message())}});
    return session;
  }
  session.drafter = DrafterBinding{
      .link = *link, .name = request.drafter().name(), .draft_model = request.drafter().draft_model()};
  return session;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* VerifierService::Generate(
    grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) {
  const SessionId id = loop_->NewSession();
  std::shared_ptr<GenerateStream> stream = GenerateStream::Create();
  auto* reactor = stream->Start(
      {.on_cancelled = [loop = loop_, id](absl::Status reason) { loop->Cancel(id, std::move(reason)); }});
  const bool bounded = context->deadline() != std::chrono::system_clock::time_point::max();
  absl::StatusOr<SessionRequest> session =
      MakeSession(*request, bounded ? absl::FromChrono(context->deadline()) : absl::InfiniteFuture());
  if (!session.ok()) {
    stream->Finish(session.status());
    return reactor;
  }
  GenerateCall call{.stream = std::move(stream), .with_logprobs = session->num_logprobs >= 0};
  v1::GenerationStarted& started = *call.started.mutable_started();
  started.set_request_id(request->request_id());
  started.set_model(target_->name);
  started.set_seed(session->sampling.seed);
  started.set_prompt_tokens(static_cast<uint32_t>(session->prompt.size()));
  if (session->replayed_end.has_value()) {  // Nothing is left to generate.
    SessionSummary summary{.end = *std::move(session->replayed_end)};
    summary.prompt_tokens = static_cast<uint32_t>(session->prompt.size());
    summary.output_tokens = session->output->num_tokens();
    call.stream->Write(std::move(call.started));
    call.stream->Write(FinishedToProto(summary));
    call.stream->Finish(absl::OkStatus());
    return reactor;
  }
  if (session->drafter.has_value()) {
    started.set_drafter(session->drafter->name);
    call.speculation = metrics_->SpeculationOf(request->tenant(), session->drafter->name);
  }
  loop_->Begin(id, *std::move(session), std::move(call));
  return reactor;
}

}  // namespace tandem
