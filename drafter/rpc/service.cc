#include "drafter/rpc/service.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/log.h"
#include "common/rpc/draft_wire.h"
#include "common/rpc/status.h"
#include "common/rpc/trace_metadata.h"
#include "drafter/rpc/score_wire.h"

namespace tandem {
namespace {

// Messages of one stream that may wait for the engine thread.
constexpr size_t kMaxInboxMessages = 256;

constexpr absl::string_view kFixedModels =
    "models cannot be loaded or unloaded here: the drafter was started without --models-folder";

// Answers a call when what was asked for is done; at once where models do not change.
template <class Request, class Response, class Change>
grpc::ServerUnaryReactor* AskForChange(grpc::CallbackServerContext* context, const Change& change,
                                       const Request* request, Response* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (!change) {
    reactor->Finish(ToGrpcStatus(absl::FailedPreconditionError(kFixedModels)));
    return reactor;
  }
  change(*request, [reactor, response](absl::StatusOr<Response> result) {
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(ToGrpcStatus(result.status()));
  });
  return reactor;
}

uint32_t EpochOf(const v1::DraftRequest& message) {
  if (message.has_open()) return message.open().epoch();
  return message.has_commit() ? message.commit().epoch() : 0;
}

}  // namespace

DrafterService::DrafterService(DrafterMetrics* metrics, const Tracer& tracer)
    : metrics_(metrics), tracer_(tracer) {}

DrafterService::~DrafterService() {
  Stop();
}

void DrafterService::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (engine_thread_.joinable()) engine_thread_.join();
  constraints_ = nullptr;
  core_ = nullptr;
  traces_ = nullptr;
}

void DrafterService::Serve(const DraftCore::Options& options, std::vector<DraftModel> models,
                           std::unique_ptr<DraftConstraints> constraints) {
  assert(core_ == nullptr);
  constraints_ = std::move(constraints);
  core_ = std::make_unique<DraftCore>(options, std::move(models), &clock_);
  traces_ = std::make_unique<DraftTraces>(tracer_, &clock_);
  engine_thread_ = std::thread([this] { Run(); });
  absl::MutexLock lock(&mutex_);
  serving_ = true;
}

grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* DrafterService::Draft(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<Stream> stream = Stream::Create(context, {}, kMaxInboxMessages);
  LinkId link = 0;
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      refused = absl::UnavailableError("the drafter is shutting down");
    } else if (!serving_) {
      refused = absl::UnavailableError("the drafter is still loading its models");
    } else {
      link = ++last_link_;
      open_.emplace(link, stream);
      inbox_.push_back({link, LinkOpened{stream}});
    }
  }
  if (!refused.ok()) {
    stream->Disconnect(refused);
    return stream->Start({});
  }
  LogInfo("verifier connected", {{"peer", context->peer()}, {"link", absl::StrCat(link)}});
  return stream->Start({.on_message = [this, link](const v1::DraftRequest& m) { OnMessage(link, m); },
                        .on_closed = [this, link](const absl::Status& s) { OnClosed(link, s); }});
}

grpc::ServerUnaryReactor* DrafterService::Score(grpc::CallbackServerContext* context,
                                                const v1::ScoreRequest* request,
                                                v1::ScoreResponse* response) {
  absl::StatusOr<ScoreRequest> decoded = ScoreRequestFromProto(*request);
  Span span = tracer_.StartServer("tandem.v1.Drafter/Score", TraceContextOf(context->client_metadata()),
                                  clock_.Now());
  span.SetCall("tandem.v1.Drafter", "Score");
  span.Set("tandem.draft_model", request->draft_model());
  span.Set("tandem.score.tokens", request->tokens_size());
  auto* const call = new ScoreCall(response, std::move(span));
  absl::Status refused = decoded.status();
  {
    absl::MutexLock lock(&mutex_);
    if (draining_ || stopping_) {
      refused = absl::UnavailableError("the drafter is shutting down");
    } else if (!serving_) {
      refused = absl::UnavailableError("the drafter is still loading its models");
    } else if (refused.ok()) {
      const ScoreId id = ++last_score_;
      call->SetOnCancel([this, id] {
        absl::MutexLock inner(&mutex_);
        score_inbox_.push_back({id, ScoreCancelled{}});
      });
      score_inbox_.push_back({id, ScoreArrived{call, *std::move(decoded), DeadlineOf(*context)}});
      return call;
    }
  }
  call->End(refused);
  return call;
}

grpc::ServerUnaryReactor* DrafterService::LoadDraftModel(grpc::CallbackServerContext* context,
                                                         const v1::LoadDraftModelRequest* request,
                                                         v1::LoadDraftModelResponse* response) {
  return AskForChange(context, changes_.load, request, response);
}

grpc::ServerUnaryReactor* DrafterService::UnloadDraftModel(grpc::CallbackServerContext* context,
                                                           const v1::UnloadDraftModelRequest* request,
                                                           v1::UnloadDraftModelResponse* response) {
  return AskForChange(context, changes_.unload, request, response);
}

void DrafterService::RunOnEngineThread(const std::function<void(DraftCore&)>& command) {
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    assert(serving_ && !stopping_);
    commands_.push_back([this, &command, &done] {
      command(*core_);
      done.Notify();
    });
  }
  done.WaitForNotification();
}

uint32_t DrafterService::AddModel(DraftModel model) {
  uint32_t going_on = 0;
  std::vector<std::shared_ptr<void>> gone;
  RunOnEngineThread([&](DraftCore& core) {
    going_on = core.AddModel(std::move(model));
    gone = core.TakeGone();
  });
  return going_on;
}

std::optional<uint32_t> DrafterService::RetireModel(const std::string& name) {
  std::optional<uint32_t> going_on;
  std::vector<std::shared_ptr<void>> gone;
  RunOnEngineThread([&](DraftCore& core) {
    going_on = core.RetireModel(name);
    gone = core.TakeGone();
  });
  return going_on;
}

void DrafterService::OnMessage(LinkId link, const v1::DraftRequest& message) {
  absl::StatusOr<DraftRequest> request = DraftRequestFromProto(message);
  Event event{.link = link};
  if (request.ok()) {
    event.what = *std::move(request);
  } else {
    event.what = Rejected{
        .session = message.session(), .epoch = EpochOf(message), .status = std::move(request).status()};
  }
  absl::MutexLock lock(&mutex_);
  inbox_.push_back(std::move(event));
}

void DrafterService::OnClosed(LinkId link, const absl::Status& status) {
  LogInfo("verifier disconnected", {{"link", absl::StrCat(link)}, {"status", status.ToString()}});
  absl::MutexLock lock(&mutex_);
  open_.erase(link);
  inbox_.push_back({link, LinkClosed{}});
}

void DrafterService::Run() {
  PublishStats();
  while (true) {
    const bool busy = core_->HasWork();
    std::vector<Event> events;
    std::vector<ScoreEvent> score_events;
    std::vector<std::function<void()>> commands;
    bool stopping = false;
    bool draining = false;
    {
      absl::MutexLock lock(&mutex_);
      if (!busy) {
        mutex_.Await(absl::Condition(
            +[](DrafterService* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
              return !self->inbox_.empty() || !self->score_inbox_.empty() || !self->compiled_.empty() ||
                     !self->commands_.empty() || self->stopping_;
            },
            this));
      }
      stopping = stopping_;
      draining = draining_;
      std::swap(events, inbox_);
      std::swap(score_events, score_inbox_);
      std::swap(commands, commands_);
    }
    busy_time_.Begin(clock_.Now());
    for (const std::function<void()>& command : commands) command();
    for (ScoreEvent& event : score_events) HandleScore(std::move(event));
    if (stopping || draining) EndScores(absl::UnavailableError("the drafter is shutting down"));
    if (stopping) break;
    for (Event& event : events) Handle(std::move(event));
    HandleConstraints();
    // Growth that commits have released goes out before the next step begins.
    SendResponses();
    if (core_->HasWork()) {
      const absl::Time start = clock_.Now();
      if (core_->Step()) metrics_->RecordStep(clock_.Now() - start);
      SendResponses();
    }
    for (std::shared_ptr<void>& gone : core_->TakeGone()) {
      if (release_) release_(std::move(gone));
    }
    PublishStats();
    busy_time_.End();
  }
  busy_time_.End();
}

void DrafterService::PublishStats() {
  const DraftStats stats = core_->stats();
  metrics_->Update(stats);
  absl::MutexLock lock(&mutex_);
  stats_ = stats;
}

void DrafterService::Handle(Event event) {
  if (auto* opened = std::get_if<LinkOpened>(&event.what)) {
    streams_.emplace(event.link, std::move(opened->stream));
    return;
  }
  const auto stream = streams_.find(event.link);
  assert(stream != streams_.end());
  if (std::holds_alternative<LinkClosed>(event.what)) {
    core_->OnLinkClosed(event.link);
    traces_->OnLinkClosed(event.link);
    streams_.erase(stream);
    return;
  }
  if (auto* rejected = std::get_if<Rejected>(&event.what)) {
    const DraftTraces::Ids ids = traces_->IdsOf(event.link, rejected->session);
    LogWarning("invalid message from a verifier", {{"link", absl::StrCat(event.link)},
                                                   {"session", absl::StrCat(rejected->session)},
                                                   {"request_id", ids.request_id},
                                                   {"trace_id", ids.trace_id},
                                                   {"error", std::string(rejected->status.message())}});
    core_->Reject(event.link, rejected->session, rejected->epoch, std::move(rejected->status));
  } else {
    const DraftRequest& request = std::get<DraftRequest>(event.what);
    core_->OnRequest(event.link, request);
    traces_->OnRequest(event.link, request);
    if (const auto* open = std::get_if<OpenSession>(&request.event)) {
      CompileConstraint(event.link, request.session, *open);
    }
  }
  stream->second->Acknowledge();
}

// A known one is there before the session's first step.
void DrafterService::CompileConstraint(LinkId link, SessionId session, const OpenSession& open) {
  if (constraints_ == nullptr || open.constraint == nullptr) return;
  constraints_->Compile(open, [this, link, session, epoch = open.epoch](
                                  const absl::StatusOr<ConstraintCompiler::Compiled>& compiled) {
    if (!compiled.ok()) {
      LogDebug("constraint ignored", {{"link", absl::StrCat(link)},
                                      {"session", absl::StrCat(session)},
                                      {"reason", compiled.status().ToString()}});
      return;
    }
    absl::MutexLock lock(&mutex_);
    compiled_.push_back({.link = link, .session = session, .epoch = epoch, .constraint = *compiled});
  });
}

void DrafterService::HandleConstraints() {
  std::vector<ConstraintCompiled> compiled;
  {
    absl::MutexLock lock(&mutex_);
    std::swap(compiled, compiled_);
  }
  for (ConstraintCompiled& one : compiled) {
    core_->OnConstraint(one.link, one.session, one.epoch,
                        CompiledConstraint::Begin(std::move(one.constraint)));
  }
}

void DrafterService::HandleScore(ScoreEvent event) {
  if (auto* arrived = std::get_if<ScoreArrived>(&event.what)) {
    score_calls_.emplace(event.id, arrived->call);
    core_->OnScore(event.id, std::move(arrived->request), arrived->deadline);
  } else {
    core_->CancelScore(event.id, absl::CancelledError("the caller cancelled the score or disconnected"));
  }
}

void DrafterService::EndScores(const absl::Status& reason) {
  core_->CancelScores(reason);
  SendResponses();
}

void DrafterService::SendResponses() {
  std::vector<ScoreAnswer> answers = core_->TakeScores();
  // Before the callers can know.
  if (!answers.empty()) metrics_->Update(core_->stats());
  for (ScoreAnswer& answer : answers) {
    const auto call = score_calls_.find(answer.id);
    assert(call != score_calls_.end());
    if (answer.result.ok()) {
      metrics_->RecordScore(answer.took);
      *call->second->response() = ScoreResultToProto(*answer.result);
    }
    call->second->End(answer.result.status());
    score_calls_.erase(call);
  }
  for (auto& [link, response] : core_->TakeResponses()) {
    LogRefusal(link, response);
    traces_->OnResponse(link, response);
    const auto stream = streams_.find(link);
    // A stream that takes no more is about to report that it is closed.
    if (stream != streams_.end()) stream->second->Write(DraftResponseToProto(response));
  }
  traces_->DropUnanswered();
}

// A verifier that opens sessions in vain must not be able to fill the log: it has the reason.
void DrafterService::LogRefusal(LinkId link, const DraftResponse& response) const {
  const auto* const refused = std::get_if<SessionRefused>(&response.event);
  if (refused == nullptr || !LogEnabled(LogLevel::kDebug)) return;
  const DraftTraces::Ids ids = traces_->IdsOf(link, response.session);
  LogDebug("session refused", {{"link", absl::StrCat(link)},
                               {"request_id", ids.request_id},
                               {"trace_id", ids.trace_id},
                               {"code", absl::StatusCodeToString(refused->status.code())}});
}

void DrafterService::Drain(absl::Time deadline) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [link, stream] : open_) streams.push_back(stream);
  }
  for (const auto& stream : streams) {
    stream->Disconnect(absl::UnavailableError("the drafter is shutting down"));
  }
  absl::MutexLock lock(&mutex_);
  // Wakes the engine thread, which ends the scores.
  if (serving_) score_inbox_.push_back({0, ScoreCancelled{}});
  mutex_.AwaitWithDeadline(absl::Condition(
                               +[](DrafterService* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
                                 return self->open_.empty();
                               },
                               this),
                           deadline);
}

DraftStats DrafterService::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace tandem
