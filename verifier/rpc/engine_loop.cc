#include "verifier/rpc/engine_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/random_bits.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "verifier/rpc/request_wire.h"

namespace tandem {
namespace {

// Before a drain's end, for the last messages to leave.
constexpr absl::Duration kHandOverTime = absl::Seconds(1);

// The RetryInfo delay for a client that found the queue full.
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

// How often to look whether an adapter that is to go is still in use.
constexpr absl::Duration kAdapterLook = absl::Milliseconds(100);

// Beside sessions, a pass of the warm-up is followed by this many times its length without one.
constexpr int64_t kWarmUpRest = 9;
constexpr absl::Duration kLeastWarmUpRest = absl::Milliseconds(10);

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

size_t NumNodes(const DraftResponse& response) {
  const Grow* const grow = std::get_if<Grow>(&response.event);
  return grow == nullptr ? 0 : grow->tokens.size();
}

}  // namespace

EngineLoop::EngineLoop(const Scheduler::Options& options, std::unique_ptr<Engine> engine,
                       std::unique_ptr<BlockPool> pool, RoundTimeModel round_time, const Clock* clock,
                       VerifierMetrics* metrics, DrafterLinks::Options drafters,
                       const DrafterNames::Options& names, std::unique_ptr<WarmUp> warm_up)
    : engine_(std::move(engine)),
      pool_(std::move(pool)),
      metrics_(metrics),
      clock_(clock),
      scheduler_(options, engine_.get(), pool_.get(), std::move(round_time), clock, this),
      warm_up_(std::move(warm_up)),
      pools_({}, RandomFraction) {
  links_ = std::make_unique<DrafterLinks>(
      DrafterLinks::Callbacks{.on_up = [this](LinkId link) { inbox_.Push(LinkUpEvent{link}); },
                              .on_down =
                                  [this](LinkId link, absl::Status reason) {
                                    inbox_.Push(LinkDownEvent{link, std::move(reason)});
                                  },
                              .on_response =
                                  [this, clock](LinkId link, DraftResponse response, size_t bytes) {
                                    response.received = clock->Now();
                                    inbox_.Push(DraftEvent{link, std::move(response), bytes});
                                  },
                              .on_malformed =
                                  [this](LinkId link, absl::Status reason) {
                                    inbox_.Push(MalformedEvent{link, std::move(reason)});
                                  },
                              .on_gone =
                                  [this](LinkId link, std::string endpoint) {
                                    inbox_.Push(LinkGoneEvent{link, std::move(endpoint)});
                                  },
                              .on_room = [this](LinkId) { inbox_.Push(LinkRoomEvent{}); }},
      clock, std::move(drafters));
  const auto set_members = [this](PoolId changed, const std::vector<std::string>& addresses,
                                  const std::string& server_name) {
    std::vector<LinkId> members;
    for (const std::string& address : addresses) {
      const absl::StatusOr<LinkId> link = links_->Acquire(address, server_name);
      if (link.ok()) {
        members.push_back(*link);
      } else {
        LogWarning("skipping a member of a drafter pool",
                   {{"endpoint", address}, {"reason", std::string(link.status().message())}});
      }
    }
    inbox_.Push(MembersEvent{changed, std::move(members)});
  };
  names_ = std::make_unique<DrafterNames>(
      names,
      DrafterNames::Callbacks{.on_members = set_members,
                              .on_gone = [this](PoolId gone) { inbox_.Push(PoolGoneEvent{gone}); }},
      clock);
  PublishLoad();
  if (warm_up_ == nullptr) {
    absl::MutexLock lock(&load_mutex_);
    measured_round_time_ = scheduler_.round_time();
  }
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() {
  inbox_.Close();
  thread_.join();
  names_.reset();
  links_.reset();  // The thread sends through them; what they still post is dropped.
}

void EngineLoop::Begin(SessionId session, SessionRequest request, GenerateCall call) {
  {
    absl::MutexLock lock(&load_mutex_);
    ++begun_;
  }
  call.times.arrived = clock_->Now();
  call.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  call.max_tokens = request.max_tokens;
  inbox_.Push(BeginEvent{session, std::move(request), std::move(call)});
}

void EngineLoop::Cancel(SessionId session, absl::Status reason) {
  inbox_.Push(CancelEvent{session, std::move(reason)});
}

void EngineLoop::SwapDrafter(DrafterSwap swap, OnSwapped done) {
  inbox_.Push(SwapEvent{std::move(swap), std::make_shared<SwapCount>(std::move(done))});
}

// Every outcome comes, at the latest with the session's end; what is dropped uncounted went with the loop.
EngineLoop::SwapCount::~SwapCount() {
  if (complete_) {
    done_(result_);
  } else {
    done_(absl::UnavailableError("the verifier is shutting down"));
  }
}

void EngineLoop::SwapCount::Count(const absl::Status& outcome) {
  if (outcome.ok()) {
    ++result_.swapped;
  } else if (absl::IsCancelled(outcome)) {
    ++result_.ended;
  } else if (result_.refused++ == 0) {
    result_.refusal = outcome.ToString();
  }
}

void EngineLoop::HandleSwap(SwapEvent& event) {
  const DrafterSwap& swap = event.swap;
  std::vector<SessionId> concerned;
  for (const auto& [session, call] : calls_) {
    const bool listed = std::find(swap.request_ids.begin(), swap.request_ids.end(), call.request_id) !=
                        swap.request_ids.end();
    if (swap.request_ids.empty() ? call.tenant == swap.tenant : listed) concerned.push_back(session);
  }
  for (SessionId session : concerned) {
    DrafterBinding to = swap.to;
    pools_.PlaceSwap(session, &to, clock_->Now());
    Swap(session, swap.from, to, event.count);
  }
  event.count->set_complete();
}

bool EngineLoop::Swap(SessionId session, absl::string_view from, const DrafterBinding& to,
                      const std::shared_ptr<SwapCount>& count) {
  // Before the outcome, which may come at once, and behind that of a swap it puts an end to.
  swaps_[session].push_back(count);
  if (scheduler_.SwapDrafter(session, from, to).ok()) return true;
  swaps_[session].pop_back();
  if (swaps_[session].empty()) swaps_.erase(session);
  return false;
}

// From one drafter of a pool to another; what becomes of it shows in where they are.
void EngineLoop::MoveSessions() {
  const absl::Time now = clock_->Now();
  if (now < pools_.NextPlan()) return;
  const auto is_swapping = [this](SessionId session) {
    const auto swaps = swaps_.find(session);
    return swaps != swaps_.end() && !swaps->second.empty();
  };
  const DrafterPools::Plan plan = pools_.MakePlan(
      now, [&](SessionId session) { return scheduler_.IsDrafting(session) && !is_swapping(session); });
  for (const DrafterPools::Move& move : plan.moves) {
    if (is_swapping(move.session)) continue;
    const auto count = std::make_shared<SwapCount>([](const absl::StatusOr<DrafterSwapResult>&) {});
    if (Swap(move.session, move.to.name, move.to, count)) metrics_->RecordPoolMove(move.reason);
  }
  for (LinkId link : plan.queries) links_->Send(link, {.session = 0, .event = LoadQuery{}});
}

absl::Status EngineLoop::BindEndpoint(const std::string& endpoint, DrafterBinding* binding) {
  TANDEM_ASSIGN_OR_RETURN(binding->pool, names_->Acquire(endpoint));
  if (binding->pool != 0) {
    binding->link = kNoLink;
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(binding->link, links_->Acquire(endpoint));
  return absl::OkStatus();
}

void EngineLoop::CountSwap(SessionId session, const absl::Status& outcome) {
  const auto found = swaps_.find(session);
  found->second.front()->Count(outcome);
  found->second.pop_front();
}

void EngineLoop::SetWindowPolicy(std::string name, WindowPolicyOptions options) {
  inbox_.Push(PolicyEvent{std::move(name), std::move(options)});
}

void EngineLoop::AddAdapter(std::shared_ptr<const LoraAdapter> adapter, OnAdapterAdded done) {
  inbox_.Push(AdapterEvent{std::move(adapter), std::move(done)});
}

void EngineLoop::DropAdapter(AdapterHandle adapter) {
  inbox_.Push(DropEvent{std::move(adapter)});
}

absl::Time EngineLoop::NextWarmUp() const {
  if (warm_up_ == nullptr) return absl::InfiniteFuture();
  return idle() ? absl::InfinitePast() : warm_up_due_;
}

void EngineLoop::ContinueWarmUp() {
  if (warm_up_ == nullptr) return;
  const absl::Time start = clock_->Now();
  if (start < NextWarmUp()) return;
  const uint32_t known = warm_up_->num_measured();
  const absl::Status passed = warm_up_->Pass(idle());
  const absl::Time end = clock_->Now();
  warm_up_due_ = end + std::max(kWarmUpRest * (end - start), kLeastWarmUpRest);
  if (!passed.ok()) {
    LogWarning("the warm-up ended early: steps in service correct its times",
               {{"error", std::string(passed.message())}});
  }
  // A model that knows no more would only lose what steps have corrected.
  if (warm_up_->num_measured() > known || warm_up_->done()) scheduler_.SetRoundTime(warm_up_->RoundTime());
  if (!warm_up_->done()) return;
  warm_up_.reset();
  absl::MutexLock lock(&load_mutex_);
  measured_round_time_ = scheduler_.round_time();
}

std::optional<RoundTimeModel> EngineLoop::measured_round_time() const {
  absl::MutexLock lock(&load_mutex_);
  return measured_round_time_;
}

bool EngineLoop::AwaitWarmUp(absl::Duration timeout) const {
  absl::MutexLock lock(&load_mutex_);
  return load_mutex_.AwaitWithTimeout(
      absl::Condition(
          +[](const EngineLoop* loop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop->load_mutex_) {
            return loop->measured_round_time_.has_value();
          },
          this),
      timeout);
}

void EngineLoop::ChangeAdapters() {
  for (const AdapterEvent& added : std::exchange(new_adapters_, {})) {
    added.done(engine_->AddAdapter(*added.adapter));
  }
  std::erase_if(dropped_adapters_, [this](const AdapterHandle& adapter) {
    // If nobody else has a handle, no further handle can be created.
    if (adapter.use_count() > 1) return false;
    const absl::Status dropped = engine_->DropAdapter(adapter->id);
    LogInfo("adapter dropped", {{"adapter", adapter->name}, {"status", dropped.ToString()}});
    return true;
  });
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

void EngineLoop::Drain(absl::Time deadline) {
  const absl::Time now = absl::Now();
  WaitUntilIdle(deadline - std::min(kHandOverTime, std::max((deadline - now) / 2, absl::ZeroDuration())));
  inbox_.Push(HandOverEvent{});
  WaitUntilIdle(deadline);
}

void EngineLoop::HandOver() {
  if (!calls_.empty()) LogInfo("handing requests over", {{"requests", absl::StrCat(calls_.size())}});
  // Those in a step that is under way end with it; the others end at once.
  std::vector<SessionId> sessions;
  for (const auto& [session, call] : calls_) sessions.push_back(session);
  for (SessionId session : sessions) {
    scheduler_.Cancel(session, absl::UnavailableError("the verifier is shutting down"));
  }
}

EngineLoop::Load EngineLoop::load() const {
  absl::MutexLock lock(&load_mutex_);
  return load_;
}

void EngineLoop::PublishLoad() {
  const Load load{.running = scheduler_.num_running(),
                  .waiting = scheduler_.num_waiting(),
                  .kv_tokens_used = uint64_t{pool_->num_held()} * kBlockTokens,
                  .window_policy = scheduler_.window_policy(),
                  .random_drafters = metrics_->random_drafters()};
  metrics_->SetWaitingFeatures(scheduler_.WaitingFeatureBytes());
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
  for (;;) {
    absl::Time wake = std::min({scheduler_.NextWake(), pools_.NextPlan(), NextWarmUp()});
    // Who lets go of one last does not say so.
    if (!dropped_adapters_.empty()) wake = std::min(wake, clock_->Now() + kAdapterLook);
    if (wake > clock_->Now()) Deliver();
    if (!inbox_.WaitUntil(wake, &events)) break;
    busy_time_.Begin(clock_->Now());
    handle_all();
    MoveSessions();
    ChangeAdapters();
    // Its blocks are for those who ask for some.
    if (warm_up_ != nullptr && !idle()) warm_up_->Release();
    if (scheduler_.Forward()) {
      Deliver();
      inbox_.Drain(&events);
      handle_all();
      Deliver();
      scheduler_.Await();
      // What arrived during the forward pass belongs in front of its conclusion.
      inbox_.Drain(&events);
      handle_all();
      scheduler_.Conclude();
    } else {
      Deliver();
    }
    ContinueWarmUp();
    PublishLoad();
    busy_time_.End();
  }
  HandOver();
  Deliver();
}

void EngineLoop::Handle(Event event) {
  std::visit(
      Overloaded{[&](BeginEvent& begin) {
                   calls_.emplace(begin.session, std::move(begin.call));
                   pools_.Place(begin.session, &begin.request, clock_->Now());
                   const absl::Status status = scheduler_.Submit(begin.session, std::move(begin.request));
                   if (status.ok()) return;
                   OnFinished(
                       begin.session,
                       absl::IsResourceExhausted(status) ? WithRetryAfter(status, kRetryAfter) : status,
                       SessionSummary{});
                 },
                 [&](CancelEvent& cancel) { scheduler_.Cancel(cancel.session, cancel.reason); },
                 [&](LinkUpEvent& up) {
                   pools_.OnLinkUp(up.link);
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
                   pools_.OnLinkDown(down.link);
                   names_->Hurry();
                   scheduler_.OnLinkDown(down.link, down.reason);
                 },
                 [&](LinkGoneEvent& gone) {
                   pools_.OnLinkGone(gone.link);
                   scheduler_.OnLinkGone(gone.link);
                   down_links_.erase(gone.link);
                   metrics_->SetDrafterConnected(gone.endpoint, false);
                 },
                 [&](LinkRoomEvent&) { scheduler_.OnLinkRoom(); },
                 [&](MembersEvent& changed) { pools_.SetMembers(changed.pool, std::move(changed.members)); },
                 [&](PoolGoneEvent& gone) { pools_.Forget(gone.pool); },
                 [&](DraftEvent& draft) {
                   pools_.OnResponse(draft.link, draft.response, clock_->Now());
                   const auto call = calls_.find(Session::IdOfDraft(draft.response.session));
                   if (call != calls_.end()) {
                     call->second.wire.RecordReceived(draft.bytes, NumNodes(draft.response));
                     call->second.trace.OnDraftResponse(draft.response, draft.response.received);
                   }
                   scheduler_.OnDraftResponse(draft.link, draft.response);
                   links_->Acknowledge(draft.link);
                   down_links_.erase(draft.link);
                 },
                 [&](MalformedEvent& malformed) {
                   scheduler_.OnMalformedResponse(malformed.link, malformed.reason.message());
                   links_->Acknowledge(malformed.link);
                 },
                 [&](SwapEvent& swap) { HandleSwap(swap); }, [&](HandOverEvent&) { HandOver(); },
                 [&](AdapterEvent& added) { new_adapters_.push_back(std::move(added)); },
                 [&](DropEvent& dropped) { dropped_adapters_.push_back(std::move(dropped.adapter)); },
                 [&](PolicyEvent& policy) {
                   const absl::Status set = scheduler_.SetWindowPolicy(policy.name, policy.options);
                   if (set.ok()) {
                     LogInfo("window policy set", {{"policy", policy.name}});
                   } else {
                     LogWarning("window policy rejected", {{"error", std::string(set.message())}});
                   }
                 }},
      event);
}

template <class What>
void EngineLoop::Keep(SessionId session, What&& what) {
  news_.push_back({.at = clock_->Now(), .session = session, .what = std::forward<What>(what)});
}

void EngineLoop::OnStarted(SessionId session) {
  Keep(session, Started());
}

void EngineLoop::OnPromptPart(SessionId session, PromptPart part) {
  Keep(session, std::move(part));
}

void EngineLoop::OnTokens(SessionId session, CommittedTokens tokens) {
  Keep(session, std::move(tokens));
}

void EngineLoop::OnRound(SessionId session, const RoundReport& report) {
  Keep(session, report);
}

void EngineLoop::OnDrafterChanged(SessionId session, const DrafterBinding& binding) {
  pools_.OnDrafterChanged(session, binding);
  GenerateCall& call = calls_.at(session);
  call.wire = metrics_->DraftingOf(call.tenant, binding.name);
  Keep(session, binding);
}

void EngineLoop::OnSwapEnded(SessionId session, const absl::Status& status) {
  Keep(session, SwapEnded{status});
}

void EngineLoop::OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) {
  pools_.OnFinished(session);
  Keep(session, Ended{status, summary});
}

void EngineLoop::OnStep(const StepReport& report) {
  Keep(0, report);
}

void EngineLoop::OnSpeedup(const ControlGroup::Estimate& gain) {
  Keep(0, gain);
}

void EngineLoop::Deliver() {
  for (News& news : news_) {
    const auto call = [&]() -> GenerateCall& { return calls_.at(news.session); };
    std::visit(Overloaded{[&](Started&) { TellStarted(call(), news.at); },
                          [&](PromptPart& part) { call().stream->Write(PromptToProto(part)); },
                          [&](CommittedTokens& tokens) { TellTokens(call(), std::move(tokens), news.at); },
                          [&](RoundReport& report) { RecordRound(call(), report, news.at); },
                          [&](DrafterBinding& binding) { RecordDrafter(call(), binding); },
                          [&](SwapEnded& swap) { CountSwap(news.session, swap.status); },
                          [&](Ended& ended) { TellEnd(news.session, ended, news.at); },
                          [&](StepReport& report) { metrics_->RecordStep(report); },
                          [&](ControlGroup::Estimate& gain) { metrics_->RecordSpeedup(gain); }},
               news.what);
  }
  news_.clear();
}

void EngineLoop::TellStarted(GenerateCall& call, absl::Time at) {
  call.trace.OnStarted(at);
  metrics_->RecordStarted(call.prompt_tokens, &call.times, at);
  call.stream->Write(std::move(call.started));
}

void EngineLoop::TellTokens(GenerateCall& call, CommittedTokens tokens, absl::Time at) {
  metrics_->RecordTokens(&call.times, at);
  v1::GenerateResponse event = ChunkToProto(std::move(tokens), call.with_logprobs);
  event.mutable_chunk()->set_arithmetic(std::exchange(call.arithmetic, 0));
  call.stream->Write(std::move(event));
}

void EngineLoop::RecordDrafter(GenerateCall& call, const DrafterBinding& binding) {
  call.drafting = metrics_->DraftingOf(call.tenant, binding.name);
  metrics_->RecordDrafterChange();
}

void EngineLoop::TellEnd(SessionId session, const Ended& ended, absl::Time at) {
  const auto found = calls_.find(session);
  GenerateCall call = std::move(found->second);
  calls_.erase(found);
  swaps_.erase(session);
  metrics_->RecordFinished(ended.status, ended.summary, call.times, call.max_tokens, at);
  call.trace.OnFinished(ended.status, ended.summary, at);
  LogEnd(call, ended.status, ended.summary);
  call.drafting.RecordRequest(call.supplies);
  if (ended.status.ok()) call.stream->Write(FinishedToProto(ended.summary));
  call.stream->Finish(ended.status);
  absl::MutexLock lock(&load_mutex_);
  ++ended_;
}

// What went well, or was no longer wanted, is for those who look for it.
void EngineLoop::LogEnd(const GenerateCall& call, const absl::Status& status, const SessionSummary& summary) {
  const LogLevel level = status.ok() || absl::IsCancelled(status) ? LogLevel::kDebug : LogLevel::kInfo;
  if (!LogEnabled(level)) return;
  const auto accepted = [&summary](SourceKind source) {
    const DraftTotals totals = TotalsBy(summary, source);
    return absl::StrCat(totals.accepted_tokens, "/", totals.draft_tokens);
  };
  Log(level, "request ended",
      {{"request_id", call.request_id},
       {"trace_id", call.trace.trace_id()},
       {"tenant", call.tenant},
       {"drafter", summary.drafter},
       {"tokens", absl::StrCat(summary.output_tokens)},
       {"drafter_accepted", accepted(SourceKind::kDrafter)},
       {"local_accepted", accepted(SourceKind::kLocal)},
       {"grammar_accepted", accepted(SourceKind::kGrammar)},
       {"prediction_accepted", accepted(SourceKind::kPrediction)},
       {"code", absl::StatusCodeToString(status.code())}});
}

void EngineLoop::OnDraftRequest(LinkId link, DraftRequest request) {
  const auto call = calls_.find(Session::IdOfDraft(request.session));
  // Commits and features, some for each round, say nothing of whose they are.
  if (call != calls_.end() && !std::holds_alternative<Commit>(request.event) &&
      !std::holds_alternative<Features>(request.event)) {
    if (auto* const open = std::get_if<OpenSession>(&request.event)) {
      open->request_id = call->second.request_id;
    }
    call->second.trace.OnDraftRequest([this, link] { return links_->EndpointOf(link); }, request,
                                      clock_->Now());
  }
  const auto* const commit = std::get_if<Commit>(&request.event);
  const auto* features = std::get_if<Features>(&request.event);
  if (commit != nullptr && commit->features.has_value()) features = &*commit->features;
  const size_t feature_bytes = features == nullptr ? 0 : features->states.size();
  const size_t bytes = links_->Send(link, std::move(request));
  if (call == calls_.end() || bytes == 0) return;
  call->second.wire.RecordSent(bytes);
  if (feature_bytes > 0) call->second.wire.RecordFeatures(feature_bytes);
}

SchedulerListener::Backlog EngineLoop::BacklogOf(LinkId link) {
  const DrafterLinks::Backlog backlog = links_->BacklogOf(link);
  return {.feature_messages = backlog.feature_messages,
          .feature_bytes = backlog.feature_bytes,
          .other_bytes = backlog.other_bytes};
}

void EngineLoop::OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) {
  const std::string endpoint = links_->EndpointOf(link);
  metrics_->RecordViolation(endpoint, quarantined);
  LogWarning(
      quarantined ? "drafter quarantined: it broke the protocol too often" : "drafter broke the protocol",
      {{"endpoint", endpoint}, {"what", std::string(what)}});
}

void EngineLoop::RecordRound(GenerateCall& call, const RoundReport& report, absl::Time at) {
  metrics_->RecordRound(report);
  if (call.trace.recording()) call.trace.OnRound(report, at);
  call.drafting.RecordRound(report);
  if (report.supply.has_value()) ++call.supplies[static_cast<size_t>(*report.supply)];
  if (!call.speculation.IsOf(report.drafters)) {
    call.speculation = metrics_->SpeculationOf(call.tenant, report.drafters);
  }
  call.speculation.RecordRound(report);
  for (const JudgedNode& node : report.judged) {
    call.calibration.Record(node.score, node.calibrated, node.accepted);
  }
}

void EngineLoop::OnStaleNodes(LinkId, uint32_t count) {
  metrics_->RecordStaleNodes(count);
}

}  // namespace tandem
