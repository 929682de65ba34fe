#include "router/serving/generate_call.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/release.h"
#include "common/rpc/trace_metadata.h"
#include "router/models/tool_choice.h"
#include "router/serving/canary_end.h"
#include "router/serving/live_start.h"
#include "router/tenants/authentication.h"

namespace tandem::router {
namespace {

// The client's clock decides its deadline; a cancellation this close to ours was that.
constexpr absl::Duration kDeadlineTolerance = absl::Milliseconds(20);
// Where services find the request's id in a call's metadata.
constexpr char kRequestIdKey[] = "tandem-request-id";

// As many as verifiers take.
constexpr int kMostAlternates = 8;

void FillTarget(const Drafter& drafter, v1::DrafterTarget& target) {
  target.set_name(drafter.name);
  target.set_endpoint(drafter.endpoint);
  target.set_draft_model(drafter.draft_model);
  target.set_trusted(drafter.trusted);
}

// Whether the prompt is scored and nothing is generated: then there is nothing to learn from.
bool OnlyScores(const v1::VerifierGenerateRequest& prepared) {
  return prepared.stopping().has_max_tokens() && prepared.stopping().max_tokens() == 0;
}

}  // namespace

std::shared_ptr<GenerateCall> GenerateCall::Create(Router& router, const CallHead& head,
                                                   ClientStream& client) {
  return std::shared_ptr<GenerateCall>(new GenerateCall(router, head, client));
}

GenerateCall::GenerateCall(Router& router, const CallHead& head, ClientStream& client)
    : router_(router),
      authorization_(head.authorization),
      peer_(head.peer),
      client_(client),
      lease_(router),
      routing_(router.snapshot()),
      deadline_(head.deadline),
      record_(router.metrics(), router.clock().Now()),
      trace_(router.tracer(), head.trace, router.clock().Now()),
      live_(router.live()) {}

void GenerateCall::Start(absl::FunctionRef<absl::StatusOr<Request>()> read) {
  absl::MutexLock lock(&mutex_);
  if (status_.has_value()) return;  // Its client is gone already.
  self_ = shared_from_this();
  if (absl::Status admitted = Begin(read); !admitted.ok()) {
    End(std::move(admitted));
    Advance();
  }
}

absl::Status GenerateCall::Begin(absl::FunctionRef<absl::StatusOr<Request>()> read) {
  TANDEM_ASSIGN_OR_RETURN(const size_t tenant, Authenticate(routing_->tenants(), authorization_));
  // Without a token anybody may be the anonymous tenant.
  if (authorization_.has_value()) router_.OnKnownCaller(peer_);
  authorization_.reset();
  tenant_ = &routing_->table().tenants[tenant];
  record_.SetTenant(tenant_->name);
  TANDEM_ASSIGN_OR_RETURN(const Request request, read());
  const auto start = [self = shared_from_this(), request](const absl::Status& placed) {
    const Tenant& of = *self->tenant_;
    self->router_.workers().Post({.tenant = of.name,
                                  .weight = of.weight,
                                  .bytes = request->ByteSizeLong(),
                                  .priority = request->priority()},
                                 [self, request, placed] { self->Prepare(*request, placed); });
  };
  TANDEM_RETURN_IF_ERROR(Admit(*request, tenant, start));
  if (!ticket_.waits_at_first()) start(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status GenerateCall::Admit(const v1::GenerateRequest& request, size_t tenant,
                                 Admission::OnPlace on_place) {
  trace_.Describe(request, tenant_->name);
  TANDEM_RETURN_IF_ERROR(ValidateRequest(request));
  TANDEM_ASSIGN_OR_RETURN(model_, SelectModel(routing_->table(), *tenant_, request.model()));
  TANDEM_ASSIGN_OR_RETURN(adapter_, SelectAdapter(*tenant_, model_, request));
  record_.SetModel(router_.model(model_).name);
  request_id_ = request.request_id();
  if (request_id_.empty()) request_id_ = absl::StrFormat("%016x%016x", router_.Draw(), router_.Draw());
  trace_.SetRequest(request_id_, router_.model(model_).name);
  TANDEM_ASSIGN_OR_RETURN(drafter_, SelectDrafter(routing_->table(), *tenant_, request.speculation(),
                                                  request_id_, router_.CanDraft(model_, *tenant_)));
  TANDEM_ASSIGN_OR_RETURN(ticket_, router_.admission().Admit(routing_->table(), tenant, std::move(on_place),
                                                             model_, request.priority()));
  record_.OnAdmitted(ticket_.waits_at_first());
  live_.OnAdmitted(tenant_->name);
  return absl::OkStatus();
}

void GenerateCall::Prepare(const v1::GenerateRequest& request, const absl::Status& placed) {
  const absl::Time now = router_.clock().Now();
  {
    absl::MutexLock lock(&mutex_);
    if (status_.has_value()) return;
    trace_.OnTaken(now);
    if (placed.ok()) record_.OnPlaced(now);
    absl::Status may_run = placed;
    if (now >= deadline_)
      may_run.Update(absl::DeadlineExceededError("the call's deadline passed while it waited"));
    // Those before it may have used up what there was when it was admitted.
    may_run.Update(router_.admission().CheckQuota(*tenant_));
    if (!may_run.ok()) {
      End(std::move(may_run));
      Advance();
      return;
    }
  }
  uint64_t tokenized = 0;
  absl::StatusOr<v1::VerifierGenerateRequest> prepared = PrepareRequest(
      request, router_.model(model_), [this] { return router_.Draw(); }, tokenized);
  const absl::Time choosing = router_.clock().Now();
  if (prepared.ok()) ChooseDrafter(*prepared);
  std::optional<ParsedOutput> parsed;
  if (prepared.ok()) parsed = ParsedOutput::Begin(request, *prepared, router_.model(model_));
  std::optional<LiveStart> shown;
  if (prepared.ok() && router_.live() != nullptr &&
      router_.live()->feed.Wanted(request.output().live_page())) {
    shown = DescribeStart(router_, *routing_, *tenant_, model_, drafter_, *prepared, request_id_);
  }

  absl::MutexLock lock(&mutex_);
  if (status_.has_value() || !prepared.ok()) {
    // A client pays for the work even if the request is refused or cancelled.
    router_.admission().Charge(*tenant_, tokenized);
    End(prepared.status());
    Advance();
    return;
  }
  prepared_ = *std::move(prepared);
  parsed_ = std::move(parsed);
  KeepTools(request);
  if (absl::Status reserved = ReserveTokens(tokenized); !reserved.ok()) {
    End(std::move(reserved));
    Advance();
    return;
  }
  prepared_.set_request_id(request_id_);
  prepared_.set_tenant(tenant_->name);
  prepared_.set_cache_salt(request.cache_salt().empty()
                               ? tenant_->cache_salt
                               : HashCombine(tenant_->cache_salt, HashBytes(request.cache_salt())));
  prepared_.set_adapter(adapter_);
  prepared_.set_text_drafting(tenant_->text_drafting);
  v1::SpeculationOptions& speculation = *prepared_.mutable_speculation();
  if (speculation.window_policy().empty()) speculation.set_window_policy(tenant_->window_policy);
  std::string drafter_name;
  if (drafter_.drafter.has_value()) {
    const Drafter& drafter = routing_->table().drafters[*drafter_.drafter];
    drafter_name = drafter.name;
    FillTarget(drafter, *prepared_.mutable_drafter());
    AddAlternates(*drafter_.drafter);
  }
  speculation.clear_partner();
  if (drafter_.drafter.has_value() && drafter_.partner.has_value() && drafter_.partner != drafter_.drafter) {
    const Drafter& partner = routing_->table().drafters[*drafter_.partner];
    FillTarget(partner, *prepared_.mutable_partner());
    speculation.set_partner(partner.name);
  }
  speculation.set_drafter(drafter_name);
  // Off means off: the verifier is not to guess by itself either.
  if (drafter_.reason == "off") {
    speculation.set_mode(v1::SPECULATION_MODE_OFF);
    prepared_.clear_prediction();
  }
  policy_key_ = {
      .tenant = tenant_->name,
      .model = adapter_.empty() ? prepared_.model() : absl::StrCat(prepared_.model(), "+", adapter_),
      .drafter = drafter_name,
      .window_policy = speculation.window_policy()};
  prepared_.set_policy_state(router_.policies().Find(policy_key_));
  TracePreparation(now, choosing);
  if (shown.has_value()) live_.Show(*shown, router_.model(model_).encoder, *prepared_.mutable_output());
  // Of a resumed request only the rest is seen here.
  if (router_.spool() != nullptr && tenant_->record_traffic && prepared_.emitted().ids().empty() &&
      !OnlyScores(prepared_)) {
    recorded_.emplace(router_.spool(), tenant_->name, router_.model(model_).vocabulary_fingerprint,
                      prepared_);
  }
  record_.OnPrepared(drafter_name, drafter_.reason, static_cast<uint32_t>(prepared_.prompt().ids_size()));
  const google::protobuf::RepeatedField<uint32_t>& emitted = prepared_.emitted().ids();
  arithmetic_ = request.resume().arithmetic();
  Relay::Names names{.model = prepared_.model(), .drafter = drafter_name, .partner = speculation.partner()};
  if (request.output().prompt_token_ids())
    names.prompt.assign(prepared_.prompt().ids().begin(), prepared_.prompt().ids().end());
  relay_.emplace(
      std::move(names), std::vector<uint32_t>(emitted.begin(), emitted.end()),
      prepared_.output().has_prompt_logprobs() ? static_cast<uint32_t>(prepared_.prompt().ids_size()) : 0);
  router_.verifiers().CountRequest();
  router_.running_calls().Add(shared_from_this());
  // Of a resumed request only the rest is seen here: nothing to score.
  if (router_.feedback() != nullptr && emitted.empty() && !OnlyScores(prepared_)) {
    feedback_ = router_.feedback()->Sample(prepared_, router_.model(model_).vocabulary_fingerprint,
                                           decision_.learning);
    // Under which drafters remember what they have seen.
    if (feedback_.has_value() && !adapter_.empty()) {
      feedback_->cache_salt =
          HashCombine(feedback_->cache_salt, router_.verifiers().FingerprintOf(model_, adapter_));
    }
    if (feedback_.has_value() && prompt_.feature_model != nullptr) {
      feedback_->features = feedback_features_ = std::make_shared<ChoiceFeatures>(model_, prompt_);
    }
  }
  StartAttempt();
  Advance();  // When there was no place for it.
}

void GenerateCall::TracePreparation(absl::Time taken, absl::Time choosing) {
  trace_.OnPrepared({.tokenizing = taken,
                     .choosing = choosing,
                     .done = router_.clock().Now(),
                     .prompt_tokens = static_cast<uint32_t>(prepared_.prompt().ids_size()),
                     .drafter = prepared_.speculation().drafter(),
                     .reason = drafter_.reason,
                     .num_candidates = drafter_.candidates.size(),
                     .predicted = decision_.predicted.has_value() ? decision_.predicted->mean : -1.0});
}

// Whom else the tenant may use, in case this one is lost; those elsewhere first, since what takes a process
// away takes all its draft models. A drafter that the request itself names is not replaced.
void GenerateCall::AddAlternates(size_t drafter) {
  if (drafter_.reason == "request") return;
  const std::vector<Drafter>& drafters = routing_->table().drafters;
  const DrafterFilter can_draft = router_.CanDraft(model_, *tenant_);
  for (const bool elsewhere : {true, false}) {
    for (size_t other : tenant_->allowed_drafters) {
      if (other == drafter || drafters[other].draining || !can_draft(drafters[other])) continue;
      if ((drafters[other].endpoint != drafters[drafter].endpoint) != elsewhere) continue;
      if (prepared_.alternates_size() >= kMostAlternates) return;
      FillTarget(drafters[other], *prepared_.add_alternates());
    }
  }
}

void GenerateCall::ChooseDrafter(const v1::VerifierGenerateRequest& prepared) {
  if (drafter_.candidates.empty() && !drafter_.drafter.has_value()) return;
  const TokenIds prompt(prepared.prompt().ids().begin(), prepared.prompt().ids().end());
  prompt_ = router_.chooser().Prepare(
      model_, prompt, adapter_.empty() ? tenant_->name : absl::StrCat(tenant_->name, "+", adapter_));
  if (drafter_.candidates.empty()) return;
  std::vector<std::string> names;
  for (size_t drafter : drafter_.candidates) names.push_back(routing_->table().drafters[drafter].name);
  decision_ = router_.chooser().Decide(model_, prompt_, names);
  drafter_.reason = decision_.reason;
  if (decision_.drafter.has_value()) drafter_.drafter = drafter_.candidates[*decision_.drafter];
}

void GenerateCall::Learn(const v1::GenerationFinished& finished) {
  const std::string& drafter = prepared_.drafter().name();
  const RequestOutcome outcome = OutcomeOf(drafter, finished.speculation(), relay_->num_tokens());
  if (decision_.predicted.has_value() && outcome.trials() > 0) {
    record_.OnPrediction(decision_.predicted->mean, decision_.predicted->low, decision_.predicted->high,
                         outcome.acceptance());
  }
  if (feedback_features_ != nullptr && outcome.trials() > 0) {
    feedback_features_->SetRealised(outcome.acceptance());
  }
  decision_.pending = nullptr;
  DrafterChooser& chooser = router_.chooser();
  chooser.Learn(model_, drafter, prompt_, outcome);
  if (chooser.FitDue(model_)) {
    router_.workers().Post([self = shared_from_this()] { self->router_.chooser().Fit(self->model_); });
  }
}

void GenerateCall::StartAttempt() {
  // Verifiers that are known not to serve would only refuse it, and would then be ejected.
  if (!router_.verifiers().MayServe(model_) && WaitForVerifier(router_.verifiers().NoneServes(model_)))
    return;
  const int attempt = ++attempts_;
  std::weak_ptr<GenerateCall> weak = weak_from_this();
  absl::StatusOr<std::unique_ptr<VerifierPool::Attempt>> begun = router_.verifiers().Begin(
      model_, absl::MakeConstSpan(prepared_.prompt().ids().data(), prepared_.prompt().ids_size()),
      prepared_.cache_salt(), failover_.tried(),
      [weak, attempt](const absl::Status& reason) {
        std::shared_ptr<GenerateCall> call = weak.lock();
        if (call == nullptr) return;
        call->OnVerifierDone(attempt, reason);
        ReleaseElsewhere(std::move(call));
      },
      Needs());
  if (!begun.ok()) {
    std::optional<absl::Duration> pause;
    if (!absl::IsInvalidArgument(begun.status())) {
      pause = failover_.NextAsking(router_.verifiers().size(model_), !relay_->tokens().empty());
    }
    if (!pause.has_value()) {
      EndWithoutVerifier(begun.status());
      return;
    }
    RetryAt(router_.clock().Now() + *pause);
    return;
  }
  attempt_ = *std::move(begun);
  Verifier* const verifier = &attempt_->verifier();
  relay_->OnAttempt(verifier->endpoint);
  prepared_.mutable_emitted()->mutable_ids()->Assign(relay_->tokens().begin(), relay_->tokens().end());
  prepared_.set_arithmetic(arithmetic_);
  // Of a prompt that is only scored, what the client has is computed again.
  if (relay_->prompt_told() && !OnlyScores(prepared_)) prepared_.mutable_output()->clear_prompt_logprobs();
  stream_ = VerifierStream::Create(kMaxQueuedEvents);
  if (deadline_ != absl::InfiniteFuture()) stream_->context().set_deadline(absl::ToChronoTime(deadline_));
  stream_->context().AddMetadata(kRequestIdKey, request_id_);
  AddTraceContext(
      trace_.OnAttempt(attempt, verifier->endpoint, relay_->tokens().size(), router_.clock().Now()),
      stream_->context());
  std::shared_ptr<GenerateCall> self = shared_from_this();
  stream_->Start(
      prepared_,
      [verifier](grpc::ClientContext* context, const v1::VerifierGenerateRequest* request,
                 grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
        verifier->stub->async()->Generate(context, request, reactor);
      },
      {.on_message =
           [self, attempt](v1::GenerateResponse event) { self->OnVerifierEvent(attempt, std::move(event)); },
       .on_done = [self, attempt](absl::Status status) { self->OnVerifierDone(attempt, status); }});
}

void GenerateCall::Retry(const absl::Status& reason) {
  const bool has_output = !relay_->tokens().empty();
  const std::optional<absl::Duration> pause =
      failover_.NextAttempt(router_.verifiers().size(model_), has_output);
  if (!pause.has_value()) {
    const bool unavailable = absl::IsUnavailable(reason);
    absl::Status status = unavailable ? NoVerifier(reason.message()) : reason;
    if (!unavailable || !WaitForVerifier(status)) End(std::move(status));
    return;
  }
  if (!router_.verifiers().TakeRetry()) {
    record_.OnRetry("refused");
    End(absl::UnavailableError(
        absl::StrCat(reason.message(), "; the router's budget for retries is used up")));
    return;
  }
  record_.OnRetry(has_output ? "mid-stream" : "no output");
  live_.OnNote(absl::StrCat("Continues on another verifier: ", reason.message()));
  LogWarning("verifier lost, trying the next",
             {{"request_id", request_id_},
              {"trace_id", trace_.trace_id()},
              {"tokens", absl::StrCat(relay_->tokens().size())},
              {"error", std::string(reason.message().data(), reason.message().size())}});
  if (*pause == absl::ZeroDuration()) {
    StartAttempt();
  } else {
    RetryAt(router_.clock().Now() + *pause);
  }
}

std::shared_ptr<Verifier> GenerateCall::Rebind(const std::string& from, const v1::DrafterTarget& to) {
  absl::MutexLock lock(&mutex_);
  if (status_.has_value() || !prepared_.has_drafter() || prepared_.drafter().name() != from) return nullptr;
  *prepared_.mutable_drafter() = to;
  return attempt_ == nullptr ? nullptr : attempt_->shared_verifier();
}

void GenerateCall::Abandon(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  End(status);
  Advance();
}

void GenerateCall::OnVerifierEvent(int attempt, v1::GenerateResponse event) {
  absl::MutexLock lock(&mutex_);
  if (!IsCurrent(attempt)) return;
  attempt_->OnEvent();
  // The limit is what the first verifier had room for, wherever the output goes on.
  if (event.has_started() && event.started().max_tokens() > 0 && !prepared_.stopping().has_max_tokens()) {
    prepared_.mutable_stopping()->set_max_tokens(event.started().max_tokens());
  }
  // Between verifier and router only.
  std::string policy_state;
  if (event.has_finished()) {
    policy_state =
        std::exchange(*event.mutable_finished()->mutable_speculation()->mutable_policy_state(), {});
  }
  const absl::StatusOr<bool> send = relay_->OnEvent(event);
  if (!send.ok()) {
    End(send.status());
  } else if (*send) {
    if (event.has_chunk()) {
      failover_.OnProgress();
      TellArithmetic(*event.mutable_chunk());
    }
    RecordEvent(event);
    if (recorded_.has_value()) recorded_->OnEvent(event);
    if (!policy_state.empty()) LearnPolicy(event.finished().speculation(), policy_state);
    live_.OnEvent(event);
    if (parsed_.has_value()) parsed_->OnEvent(event);
    queue_.push_back({std::move(event), attempt});
  } else {
    stream_->Acknowledge();
  }
  Advance();
}

void GenerateCall::RecordEvent(const v1::GenerateResponse& event) {
  const absl::Time now = router_.clock().Now();
  if (event.has_started()) record_.OnStarted();
  if (event.has_chunk()) {
    const auto count = static_cast<uint32_t>(event.chunk().tokens_size());
    record_.OnTokens(count, now);
    trace_.OnTokens(now);
    if (feedback_.has_value()) {
      feedback_->tokens.insert(feedback_->tokens.end(), event.chunk().tokens().begin(),
                               event.chunk().tokens().end());
    }
  }
  if (event.has_finished()) {
    if (!record_.OnFinished(event.finished())) {
      LogWarning("a verifier's speculation statistics are inconsistent",
                 {{"request_id", request_id_},
                  {"trace_id", trace_.trace_id()},
                  {"model", prepared_.model()},
                  {"drafter", prepared_.drafter().name()}});
    }
    trace_.OnFinished(event.finished());
    if (!OnlyScores(prepared_)) Learn(event.finished());
    ObserveCanary(event.finished().speculation());
  }
}

void GenerateCall::LearnPolicy(const v1::SpeculationStats& stats, absl::string_view state) {
  // Another drafter has taken over meanwhile, or this one was lost: the state does not belong to one drafter.
  const std::string& drafter = policy_key_.drafter;
  if (stats.drafter() != drafter || prepared_.drafter().name() != drafter || !stats.drafter_lost().empty())
    return;
  if (const absl::Status status = router_.policies().Learn(policy_key_, state); !status.ok()) {
    LogWarning("the learned state of a window policy cannot be read",
               {{"request_id", request_id_},
                {"trace_id", trace_.trace_id()},
                {"model", prepared_.model()},
                {"error", std::string(status.message())}});
  }
}

void GenerateCall::ObserveCanary(const v1::SpeculationStats& stats) {
  if (!tenant_->canary.has_value() || !drafter_.drafter.has_value() || drafter_.reason == "request") return;
  // Another one has taken over meanwhile: the rounds are nobody's alone. Of one that was lost they are its
  // own: it earned nothing in them.
  const std::string& drafter = routing_->table().drafters[*drafter_.drafter].name;
  if (stats.drafter() != drafter || prepared_.drafter().name() != drafter) return;
  std::optional<CanaryVerdict> verdict =
      router_.canaries().OnFinished(routing_->table(), *tenant_, *drafter_.drafter, stats);
  if (!verdict.has_value()) {
    if (const auto view = router_.canaries().View(tenant_->name); view.has_value()) {
      router_.metrics().SetCanary(tenant_->name, view->own, view->canary, view->margin, view->requests);
    }
    return;
  }
  // On a worker, because it writes to the store.
  router_.workers().Post([self = shared_from_this(), verdict = *std::move(verdict)] {
    FollowVerdict(self->router_, self->routing_->table(), *self->tenant_, verdict);
  });
}

void GenerateCall::OnVerifierDone(int attempt, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (!IsCurrent(attempt)) return;
  trace_.OnAttemptEnd(status.code(), router_.clock().Now());
  // The client's clock may be behind by a little.
  const bool in_time = router_.clock().Now() < deadline_ - kDeadlineTolerance;
  Relay::End end = relay_->OnEnd(status, in_time);
  if (!tools_.tools().empty()) end.status = ToolError(tools_, end.status);
  if (absl::IsAborted(status) && end.retry) {
    attempt_->OnChanged();
  } else if (absl::IsUnavailable(end.status) || absl::IsInternal(end.status)) {
    attempt_->OnFailure();
  } else {
    attempt_->OnSuccess();
  }
  if (!end.retry) {
    End(std::move(end.status));
  } else {
    failover_.OnFailed(attempt_->index(), router_.verifiers().size(model_));
    attempt_.reset();
    // Of one that has stalled; the others are over.
    if (stream_ != nullptr) std::exchange(stream_, nullptr)->TryCancel();
    Retry(end.status);
  }
  Advance();
}

void GenerateCall::End(absl::Status status) {
  if (status_.has_value()) return;
  status_ = std::move(status);
  trace_.OnAttemptEnd(status_->code(), router_.clock().Now());
  router_.running_calls().Remove(this);
  attempt_.reset();
  wait_.reset();
  // The work is done, so a client that does not read the queue keeps nobody out.
  if (reserved_tokens_.has_value()) {
    router_.admission().Settle(*tenant_, *reserved_tokens_,
                               used_tokens_ + (relay_.has_value() ? relay_->num_tokens() : 0));
  }
  ticket_.GiveBackPlace();
  if (retry_alarm_ != nullptr) retry_alarm_->Cancel();
  // Harmless when it has ended by itself.
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->TryCancel();
}

void GenerateCall::Advance() {
  if (writing_ || finished_ || cancelling_) return;
  if (!queue_.empty()) {
    writing_ = true;
    write_began_ = std::chrono::steady_clock::now();
    if (!watching_) WatchWrite();
    client_.Write(queue_.front().event);
    return;
  }
  if (!status_.has_value()) return;
  finished_ = true;
  // Before the client can know, so that what it sees next counts this request as over.
  record_.OnEnd(status_->code(), router_.clock().Now());
  live_.OnEnded(*status_);
  if (write_alarm_ != nullptr) write_alarm_->Cancel();
  LogEnd();
  OfferFeedback();
  if (recorded_.has_value() && status_->ok()) recorded_->End(router_.clock().Now());
  ticket_ = Admission::Ticket();
  // For unauthenticated callers, a trace would contain no more than the log.
  if (tenant_ != nullptr) {
    trace_.OnEnd(status_->code(), relay_.has_value() ? relay_->num_tokens() : 0, router_.clock().Now());
  }
  client_.Finish(*status_);
}

void GenerateCall::OfferFeedback() {
  if (!feedback_.has_value() || !status_->ok()) return feedback_.reset();
  std::vector<FeedbackDrafter> candidates;
  for (const size_t index : tenant_->allowed_drafters) {
    const Drafter& drafter = routing_->table().drafters[index];
    // Drafters that draft by text cannot score.
    if (drafter.draining || router_.chooser().FitOf(model_, drafter.name) != VocabularyFit::kIds) continue;
    candidates.push_back({drafter.name, drafter.endpoint, drafter.draft_model});
  }
  feedback_->trace = std::make_shared<Span>(trace_.StartFeedback(router_.clock().Now()));
  router_.workers().Post(
      [feedback = router_.feedback(), request = *std::exchange(feedback_, std::nullopt),
       candidates = std::move(candidates)]() mutable { feedback->Offer(std::move(request), candidates); });
}

void GenerateCall::LogEnd() const {
  // Unauthenticated callers must not be able to fill the log.
  if (tenant_ == nullptr) return;
  LogInfo("request ended", {{"request_id", request_id_},
                            {"trace_id", trace_.trace_id()},
                            {"tenant", tenant_->name},
                            {"model", prepared_.model()},
                            {"drafter", prepared_.drafter().name()},
                            {"tokens", absl::StrCat(relay_.has_value() ? relay_->num_tokens() : 0)},
                            {"code", absl::StatusCodeToString(status_->code())}});
}

void GenerateCall::OnCancel() {
  absl::MutexLock lock(&mutex_);
  OnClientGone();
  Advance();
}

void GenerateCall::OnClientGone() {
  const bool late = router_.clock().Now() >= deadline_ - kDeadlineTolerance;
  End(late ? absl::DeadlineExceededError("the call's deadline has passed")
           : absl::CancelledError("the client cancelled the call or disconnected"));
  // Nobody reads the queue any more. A message in flight stays until gRPC releases it.
  queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;
  absl::MutexLock lock(&mutex_);
  self = std::move(self_);
}

}  // namespace tandem::router
