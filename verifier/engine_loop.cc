#include "verifier/engine_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/rpc/status.h"
#include "verifier/request_wire.h"

namespace tandem {
namespace {

// What a client that found the queue full is told to wait.
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

EngineLoop::EngineLoop(const Scheduler::Options& options, std::unique_ptr<Engine> engine,
                       std::unique_ptr<BlockPool> pool, RoundTimeModel round_time, const Clock* clock,
                       VerifierMetrics* metrics)
    : engine_(std::move(engine)),
      pool_(std::move(pool)),
      metrics_(metrics),
      scheduler_(options, engine_.get(), pool_.get(), std::move(round_time), clock, this) {
  links_ = std::make_unique<DrafterLinks>(
      DrafterLinks::Callbacks{.on_up = [this](LinkId link) { inbox_.Push(LinkUpEvent{link}); },
                              .on_down =
                                  [this](LinkId link, absl::Status reason) {
                                    inbox_.Push(LinkDownEvent{link, std::move(reason)});
                                  },
                              .on_response =
                                  [this, clock](LinkId link, DraftResponse response) {
                                    response.received = clock->Now();
                                    inbox_.Push(DraftEvent{link, std::move(response)});
                                  },
                              .on_malformed =
                                  [this](LinkId link, absl::Status reason) {
                                    inbox_.Push(MalformedEvent{link, std::move(reason)});
                                  }},
      clock);
  PublishLoad();
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() {
  inbox_.Close();
  thread_.join();
  links_.reset();  // The thread sends through them; what they still post is dropped.
}

void EngineLoop::Begin(SessionId session, SessionRequest request, GenerateCall call) {
  {
    absl::MutexLock lock(&load_mutex_);
    ++begun_;
  }
  inbox_.Push(BeginEvent{session, std::move(request), std::move(call)});
}

void EngineLoop::Cancel(SessionId session, absl::Status reason) {
  inbox_.Push(CancelEvent{session, std::move(reason)});
}

void EngineLoop::SetWindowPolicy(std::string name, WindowPolicyOptions options) {
  inbox_.Push(PolicyEvent{std::move(name), std::move(options)});
}

void EngineLoop::WaitUntilIdle(absl::Time deadline) {
  absl::MutexLock lock(&load_mutex_);
  load_mutex_.AwaitWithDeadline(absl::Condition(
                                    +[](EngineLoop* loop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop->load_mutex_) {
                                      return loop->begun_ == loop->ended_;
                                    },
                                    this),
                                deadline);
}

EngineLoop::Load EngineLoop::load() const {
  absl::MutexLock lock(&load_mutex_);
  return load_;
}

void EngineLoop::PublishLoad() {
  const Load load{.running = scheduler_.num_running(),
                  .waiting = scheduler_.num_waiting(),
                  .kv_tokens_used = uint64_t{pool_->num_held()} * kBlockTokens,
                  .window_policy = scheduler_.window_policy()};
  metrics_->SetLoad(load.running, load.waiting, load.kv_tokens_used,
                    uint64_t{pool_->num_blocks()} * kBlockTokens);
  absl::MutexLock lock(&load_mutex_);
  load_ = load;
}

void EngineLoop::Run() {
  std::vector<Event> events;
  const auto handle_all = [&] {
    for (Event& event : events) Handle(std::move(event));
    events.clear();
  };
  while (inbox_.WaitUntil(scheduler_.NextWake(), &events)) {
    handle_all();
    if (scheduler_.Forward()) {
      // What arrived during the forward pass belongs in front of its conclusion.
      inbox_.Drain(&events);
      handle_all();
      scheduler_.Conclude();
    }
    PublishLoad();
  }
  while (!calls_.empty()) {
    scheduler_.Cancel(calls_.begin()->first, absl::UnavailableError("the verifier is shutting down"));
  }
}

void EngineLoop::Handle(Event event) {
  std::visit(
      Overloaded{[&](BeginEvent& begin) {
                   calls_.emplace(begin.session, std::move(begin.call));
                   const absl::Status status = scheduler_.Submit(begin.session, std::move(begin.request));
                   if (status.ok()) return;
                   OnFinished(
                       begin.session,
                       absl::IsResourceExhausted(status) ? WithRetryAfter(status, kRetryAfter) : status,
                       SessionSummary{});
                 },
                 [&](CancelEvent& cancel) { scheduler_.Cancel(cancel.session, cancel.reason); },
                 [&](LinkUpEvent& up) {
                   scheduler_.OnLinkUp(up.link);
                   metrics_->SetDrafterConnected(links_->EndpointOf(up.link), true);
                 },
                 [&](LinkDownEvent& down) {
                   const std::string endpoint = links_->EndpointOf(down.link);
                   // Once for an outage, not for every attempt to reconnect.
                   if (down_links_.insert(down.link).second) {
                     LogWarning("drafter stream ended",
                                {{"endpoint", endpoint}, {"reason", std::string(down.reason.message())}});
                   }
                   metrics_->SetDrafterConnected(endpoint, false);
                   scheduler_.OnLinkDown(down.link, down.reason);
                 },
                 [&](DraftEvent& draft) {
                   scheduler_.OnDraftResponse(draft.link, draft.response);
                   links_->Acknowledge(draft.link);
                   down_links_.erase(draft.link);
                 },
                 [&](MalformedEvent& malformed) {
                   scheduler_.OnMalformedResponse(malformed.link, malformed.reason.message());
                   links_->Acknowledge(malformed.link);
                 },
                 [&](PolicyEvent& policy) {
                   const absl::Status set = scheduler_.SetWindowPolicy(policy.name, policy.options);
                   if (set.ok()) {
                     LogInfo("window policy set", {{"policy", policy.name}});
                   } else {
                     LogWarning("window policy not set", {{"error", std::string(set.message())}});
                   }
                 }},
      event);
}

void EngineLoop::OnStarted(SessionId session) {
  GenerateCall& call = calls_.at(session);
  call.stream->Write(std::move(call.started));
}

void EngineLoop::OnTokens(SessionId session, CommittedTokens tokens) {
  const GenerateCall& call = calls_.at(session);
  call.stream->Write(ChunkToProto(std::move(tokens), call.with_logprobs));
}

void EngineLoop::OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) {
  const auto found = calls_.find(session);
  const GenerateCall call = std::move(found->second);
  calls_.erase(found);
  metrics_->RecordFinished(status, summary);
  if (status.ok()) call.stream->Write(FinishedToProto(summary));
  call.stream->Finish(status);
  absl::MutexLock lock(&load_mutex_);
  ++ended_;
}

void EngineLoop::OnDraftRequest(LinkId link, DraftRequest request) {
  links_->Send(link, request);
}

void EngineLoop::OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) {
  const std::string endpoint = links_->EndpointOf(link);
  metrics_->RecordViolation(endpoint);
  LogWarning(
      quarantined ? "drafter quarantined: it broke the protocol too often" : "drafter broke the protocol",
      {{"endpoint", endpoint}, {"what", std::string(what)}});
}

void EngineLoop::OnStep(const StepReport& report) {
  metrics_->RecordStep(report);
}

void EngineLoop::OnRound(SessionId session, const RoundReport& report) {
  metrics_->RecordRound(report);
  if (report.kind != RoundKind::kUndrafted) {
    calls_.at(session).speculation.RecordRound(report.nodes, report.accepted);
  }
}

void EngineLoop::OnStaleNodes(LinkId, uint32_t count) {
  metrics_->RecordStaleNodes(count);
}

}  // namespace tandem
