#include "router/generate_call.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "router/authentication.h"

namespace tandem::router {
namespace {

// How long refused clients are told to wait.
constexpr absl::Duration kRetryDelay = absl::Seconds(1);
// The client's clock decides its deadline; a cancellation this close to ours was that.
constexpr absl::Duration kDeadlineTolerance = absl::Milliseconds(20);
// Where services find the request's id in a call's metadata.
constexpr char kRequestIdKey[] = "tandem-request-id";

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerateCall::Start(Router& router,
                                                                    grpc::CallbackServerContext* context,
                                                                    const v1::GenerateRequest& request) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(router, *context));
  absl::MutexLock lock(&call->mutex_);
  call->self_ = call;
  absl::Status admitted = call->Admit(*context, request);
  if (!admitted.ok()) {
    call->End(std::move(admitted));
    call->Advance();
    return call.get();
  }
  // A copy, because gRPC frees the request when the call is done, which a cancellation may bring about before
  // the worker is.
  router.workers().Post([call, request] { call->Prepare(request); });
  return call.get();
}

GenerateCall::GenerateCall(Router& router, const grpc::CallbackServerContext& context)
    : router_(router),
      lease_(router),
      deadline_(DeadlineOf(context)),
      record_(router.metrics(), router.clock().Now()) {}

absl::Status GenerateCall::Admit(const grpc::CallbackServerContext& context,
                                 const v1::GenerateRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const size_t tenant,
                          AuthenticateCall(router_.tenants(), context.client_metadata()));
  tenant_ = &router_.table().tenants[tenant];
  record_.SetTenant(tenant_->name);
  TANDEM_RETURN_IF_ERROR(ValidateRequest(request));
  TANDEM_ASSIGN_OR_RETURN(model_, SelectModel(router_.table(), *tenant_, request.model()));
  record_.SetModel(router_.model(model_).name);
  TANDEM_ASSIGN_OR_RETURN(drafter_, SelectDrafter(router_.table(), *tenant_, request.speculation()));
  request_id_ = request.request_id();
  if (request_id_.empty()) request_id_ = absl::StrFormat("%016x%016x", router_.Draw(), router_.Draw());
  absl::StatusOr<Admission::Ticket> ticket = router_.admission().Admit(tenant);
  if (!ticket.ok()) return WithRetryAfter(ticket.status(), kRetryDelay);
  ticket_ = *std::move(ticket);
  record_.OnAdmitted();
  return absl::OkStatus();
}

void GenerateCall::Prepare(const v1::GenerateRequest& request) {
  {
    absl::MutexLock lock(&mutex_);
    if (status_.has_value()) return;
  }
  absl::StatusOr<v1::VerifierGenerateRequest> prepared =
      PrepareRequest(request, router_.model(model_), [this] { return router_.Draw(); });

  absl::MutexLock lock(&mutex_);
  if (status_.has_value()) return;
  if (!prepared.ok()) {
    End(prepared.status());
    Advance();
    return;
  }
  prepared_ = *std::move(prepared);
  prepared_.set_request_id(request_id_);
  prepared_.set_tenant(tenant_->name);
  prepared_.set_cache_salt(tenant_->cache_salt);
  v1::SpeculationOptions& speculation = *prepared_.mutable_speculation();
  if (speculation.window_policy().empty()) speculation.set_window_policy(tenant_->window_policy);
  std::string drafter_name;
  if (drafter_.drafter.has_value()) {
    const Drafter& drafter = router_.table().drafters[*drafter_.drafter];
    drafter_name = drafter.name;
    prepared_.mutable_drafter()->set_name(drafter.name);
    prepared_.mutable_drafter()->set_endpoint(drafter.endpoint);
    prepared_.mutable_drafter()->set_draft_model(drafter.draft_model);
  }
  speculation.set_drafter(drafter_name);
  record_.OnPrepared(drafter_name, drafter_.reason, static_cast<uint32_t>(prepared_.prompt().ids_size()));
  relay_.emplace(Relay::Names{.model = prepared_.model(), .drafter = drafter_name});
  verifiers_ = router_.verifiers().Order(
      model_, absl::MakeConstSpan(prepared_.prompt().ids().data(), prepared_.prompt().ids_size()),
      tenant_->cache_salt);
  StartAttempt();
}

void GenerateCall::StartAttempt() {
  Verifier* verifier = verifiers_[attempts_];
  const int attempt = ++attempts_;
  relay_->OnAttempt(verifier->endpoint);
  stream_ = VerifierStream::Create(kMaxQueuedEvents);
  if (deadline_ != absl::InfiniteFuture()) stream_->context().set_deadline(absl::ToChronoTime(deadline_));
  stream_->context().AddMetadata(kRequestIdKey, request_id_);
  verifier->in_flight.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<GenerateCall> self = shared_from_this();
  stream_->Start(
      prepared_,
      [verifier](grpc::ClientContext* context, const v1::VerifierGenerateRequest* request,
                 grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
        verifier->stub->async()->Generate(context, request, reactor);
      },
      {.on_message =
           [self, attempt](v1::GenerateResponse event) { self->OnVerifierEvent(attempt, std::move(event)); },
       .on_done =
           [self, attempt, verifier](absl::Status status) {
             verifier->in_flight.fetch_sub(1, std::memory_order_relaxed);
             self->OnVerifierDone(attempt, status);
           }});
}

void GenerateCall::OnVerifierEvent(int attempt, v1::GenerateResponse event) {
  absl::MutexLock lock(&mutex_);
  if (status_.has_value() || attempt != attempts_) return;
  const absl::StatusOr<bool> send = relay_->OnEvent(event);
  if (!send.ok()) {
    End(send.status());
  } else if (*send) {
    RecordEvent(event);
    queue_.push_back(std::move(event));
  } else {
    stream_->Acknowledge();
  }
  Advance();
}

void GenerateCall::RecordEvent(const v1::GenerateResponse& event) {
  const absl::Time now = router_.clock().Now();
  if (event.has_started()) record_.OnStarted();
  if (event.has_chunk()) record_.OnTokens(static_cast<uint32_t>(event.chunk().tokens_size()), now);
  if (event.has_finished()) record_.OnFinished(event.finished());
}

void GenerateCall::OnVerifierDone(int attempt, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (status_.has_value() || attempt != attempts_) return;
  Relay::End end = relay_->OnEnd(status);
  if (!end.retry) {
    End(std::move(end.status));
  } else if (static_cast<size_t>(attempts_) < verifiers_.size()) {
    LogWarning("verifier unavailable, trying the next",
               {{"request_id", request_id_},
                {"verifier", verifiers_[attempts_ - 1]->endpoint},
                {"error", std::string(status.message().data(), status.message().size())}});
    StartAttempt();
  } else {
    End(absl::UnavailableError(absl::StrCat("no verifier of model \"", prepared_.model(),
                                            "\" can be reached; tried ", attempts_,
                                            ", the last: ", end.status.message())));
  }
  Advance();
}

void GenerateCall::End(absl::Status status) {
  if (status_.has_value()) return;
  status_ = std::move(status);
  // Harmless when it has ended by itself.
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->TryCancel();
}

void GenerateCall::Advance() {
  if (writing_ || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
    return;
  }
  if (!status_.has_value()) return;
  finished_ = true;
  // Before the client can know, so that what it sees next counts this request as over.
  record_.OnEnd(status_->code(), router_.clock().Now());
  ticket_ = Admission::Ticket();
  LogEnd();
  Finish(ToGrpcStatus(*status_));
}

void GenerateCall::LogEnd() const {
  // Callers that nobody knows must not be able to fill the log.
  if (tenant_ == nullptr) return;
  LogInfo("request ended", {{"request_id", request_id_},
                            {"tenant", tenant_->name},
                            {"model", prepared_.model()},
                            {"drafter", prepared_.drafter().name()},
                            {"tokens", absl::StrCat(relay_.has_value() ? relay_->num_tokens() : 0)},
                            {"code", absl::StatusCodeToString(status_->code())}});
}

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  queue_.pop_front();
  if (!ok) {
    OnClientGone();
  } else if (stream_ != nullptr) {
    stream_->Acknowledge();
  }
  Advance();
}

void GenerateCall::OnCancel() {
  absl::MutexLock lock(&mutex_);
  OnClientGone();
  Advance();
}

void GenerateCall::OnClientGone() {
  const bool late = router_.clock().Now() >= deadline_ - kDeadlineTolerance;
  End(late ? absl::DeadlineExceededError("the call's deadline has passed")
           : absl::CancelledError("the client cancelled the call or is gone"));
  // Nobody reads what is queued; a message being written stays until gRPC lets go of it.
  queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;
  absl::MutexLock lock(&mutex_);
  self = std::move(self_);
}

}  // namespace tandem::router
