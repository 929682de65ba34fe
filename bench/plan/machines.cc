#include "bench/plan/machines.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace tandem::plan {
namespace {

// How many times in a row a machine may be due at the same moment without computing anything.
constexpr uint32_t kMostVainSteps = 1000;

absl::Duration Milliseconds(double ms) {
  return absl::Seconds(ms / 1000.0);
}

Scheduler::Options SchedulerOptionsOf(const Layout& layout) {
  const VerifierGroup& group = layout.verifiers;
  return {.max_running = group.max_running,
          .max_waiting = group.max_waiting,
          .prefill_chunk = group.prefill_chunk,
          .limits = layout.window,
          .window_policy = layout.window_policy,
          .vocabulary_fingerprint = kPlanFingerprint};
}

DraftModel DraftModelOf(const DrafterGroup& group, PlanDraft* engine, BlockPool* pool) {
  const uint32_t held = pool->num_blocks() * kBlockTokens;
  return {.name = group.name,
          .engine = engine,
          .pool = pool,
          .vocabulary_fingerprint = kPlanFingerprint,
          .context_length = std::min(held, static_cast<uint32_t>(PlanEngine::kMaxContext))};
}

}  // namespace

DrafterPlaces DrafterPlaces::Of(const Layout& layout) {
  DrafterPlaces places;
  LinkId next = 1;
  for (const DrafterGroup& group : layout.drafters) {
    if (group.count == 0) continue;
    const PoolId pool = group.count > 1 ? places.groups.size() + 1 : 0;
    places.groups.push_back({.name = group.name, .first_link = next, .count = group.count, .pool = pool});
    next += group.count;
  }
  return places;
}

DrafterBinding DrafterPlaces::BindingOf(size_t group) const {
  const Group& of = groups[group];
  return {.link = of.first_link, .name = of.name, .draft_model = of.name, .trusted = true, .pool = of.pool};
}

VerifierMachine::VerifierMachine(const Layout& layout, const DrafterPlaces& places, uint64_t seed, Send send,
                                 VerifierEvents* events)
    : between_steps_(Milliseconds(layout.verifiers.between_steps_ms)),
      between_steps_per_session_(Milliseconds(layout.verifiers.between_steps_per_session_ms)),
      send_(std::move(send)),
      events_(events),
      engine_({.kv_tokens = layout.verifiers.kv_tokens,
               .max_rows = layout.verifiers.max_rows,
               .step = layout.verifiers.step},
              &clock_),
      pool_({.num_blocks = engine_.num_blocks(), .prefix_cache = layout.verifiers.prefix_cache}),
      pools_({}, [this, seed] { return static_cast<double>(HashCombine(seed, ++draws_) >> 11) * 0x1p-53; }),
      free_at_(clock_.Now()) {
  SchedulerListener* const listener = this;
  scheduler_ = std::make_unique<Scheduler>(SchedulerOptionsOf(layout), &engine_, &pool_,
                                           layout.verifiers.step.AsMeasured(), &clock_, listener);
  for (const DrafterPlaces::Group& group : places.groups) {
    std::vector<LinkId> members;
    for (LinkId link = group.first_link; link < group.first_link + group.count; ++link) {
      members.push_back(link);
      pools_.OnLinkUp(link);
      scheduler_->OnLinkUp(link);
    }
    if (group.pool != 0) pools_.SetMembers(group.pool, std::move(members));
  }
}

void VerifierMachine::Submit(absl::Time arrival, SessionId session, SessionRequest request) {
  inbox_.Push(arrival, {.session = session, .request = std::make_unique<SessionRequest>(std::move(request))});
  if (!in_flight_) due_ = std::min(due_, std::max(arrival, free_at_));
}

void VerifierMachine::Receive(absl::Time arrival, LinkId link, DraftResponse&& response) {
  inbox_.Push(arrival, {.link = link, .response = std::move(response)});
  if (!in_flight_) due_ = std::min(due_, std::max(arrival, free_at_));
}

void VerifierMachine::TakeMessages(absl::Time until) {
  while (inbox_.next() <= until) {
    const absl::Time arrival = inbox_.next();
    Message& message = inbox_.Pop();
    if (message.request == nullptr) {
      pools_.OnResponse(message.link, message.response, arrival);
      message.response.received = arrival;
      scheduler_->OnDraftResponse(message.link, message.response);
      continue;
    }
    pools_.Place(message.session, message.request.get(), arrival);
    const absl::Status taken = scheduler_->Submit(message.session, std::move(*message.request));
    if (taken.ok()) continue;
    pools_.OnFinished(message.session);
    events_->OnRefused(message.session, taken, until);
  }
}

// As in the verifier's engine loop.
void VerifierMachine::MoveSessions() {
  if (clock_.Now() < pools_.NextPlan()) return;
  const DrafterPools::Plan plan =
      pools_.MakePlan(clock_.Now(), [this](SessionId session) { return scheduler_->IsDrafting(session); });
  for (const DrafterPools::Move& move : plan.moves) {
    // An error means that the session is about to finish, or has just ended a swap. It stays where it is.
    scheduler_->SwapDrafter(move.session, "", move.to).IgnoreError();
  }
  for (const LinkId link : plan.queries) {
    send_(clock_.Now(), link, {.session = 0, .event = LoadQuery{}});
  }
}

void VerifierMachine::Step() {
  const absl::Time now = due_;
  if (in_flight_) {
    scheduler_->Await();  // Moves the clock to the end of the step, which is now.
    TakeMessages(now);
    step_sessions_ = 0;
    scheduler_->Conclude();
    in_flight_ = false;
    free_at_ = now + between_steps_ + between_steps_per_session_ * step_sessions_;
  } else {
    clock_.MoveTo(now);
    TakeMessages(now);
  }
  if (now >= free_at_) {
    MoveSessions();
    in_flight_ = scheduler_->Forward();
  }
  Schedule();
  num_vain_steps_ = in_flight_ || due_ > now ? 0 : num_vain_steps_ + 1;
  if (num_vain_steps_ > kMostVainSteps) {
    failure_.Update(absl::InternalError("a verifier is due again and again, and has nothing to do"));
  }
}

void VerifierMachine::Schedule() {
  if (in_flight_) {
    due_ = engine_.end();
    return;
  }
  const absl::Time wake = std::min(scheduler_->NextWake(), pools_.NextPlan());
  due_ = std::max({std::min(wake, inbox_.next()), free_at_, clock_.Now()});
}

void VerifierMachine::OnStarted(SessionId session) {
  events_->OnStarted(session, clock_.Now());
}

void VerifierMachine::OnTokens(SessionId session, CommittedTokens tokens) {
  events_->OnTokens(session, static_cast<uint32_t>(tokens.tokens.size()), clock_.Now());
}

void VerifierMachine::OnFinished(SessionId session, const absl::Status& status,
                                 const SessionSummary& summary) {
  pools_.OnFinished(session);
  if (absl::IsInternal(status)) failure_.Update(status);
  events_->OnFinished(session, status, summary, clock_.Now());
}

void VerifierMachine::OnDraftRequest(LinkId link, DraftRequest request) {
  send_(clock_.Now(), link, std::move(request));
}

void VerifierMachine::OnProtocolViolation(LinkId link, absl::string_view what, bool) {
  failure_.Update(absl::InternalError(absl::StrCat("drafter ", link, " broke the protocol: ", what)));
}

void VerifierMachine::OnStep(const StepReport& report) {
  step_sessions_ = report.sessions;
  preemptions_ += report.preemptions;
}

void VerifierMachine::OnDrafterChanged(SessionId session, const DrafterBinding& binding) {
  pools_.OnDrafterChanged(session, binding);
}

absl::Status VerifierMachine::CheckEmpty() const {
  if (scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0 || !inbox_.empty()) {
    return absl::InternalError(absl::StrCat("a verifier has ", scheduler_->num_running(), " running and ",
                                            scheduler_->num_waiting(), " waiting requests at the end"));
  }
  return pool_.CheckConserved({});
}

DrafterMachine::DrafterMachine(const DrafterGroup& group, std::vector<const Acceptance*> acceptance,
                               Reply reply)
    : between_steps_(Milliseconds(group.between_steps_ms)),
      reply_(std::move(reply)),
      engine_({.kv_tokens = group.kv_tokens, .step = group.step}, std::move(acceptance), &clock_),
      pool_({.num_blocks = engine_.num_blocks()}),
      core_({.max_sessions = group.max_sessions,
             .expand_width = group.expand_width,
             .max_step_rows = group.max_step_rows},
            {DraftModelOf(group, &engine_, &pool_)}, &clock_),
      free_at_(clock_.Now()) {}

void DrafterMachine::Receive(absl::Time arrival, LinkId verifier, DraftRequest&& request) {
  inbox_.Push(arrival, {.verifier = verifier, .request = std::move(request)});
  due_ = std::min(due_, std::max(arrival, free_at_));
}

void DrafterMachine::Step() {
  const absl::Time now = due_;
  clock_.MoveTo(now);
  while (inbox_.next() <= now) {
    const Message& message = inbox_.Pop();
    core_.OnRequest(message.verifier, message.request);
  }
  if (core_.HasWork()) core_.Step();  // Moves the clock.
  responses_ = core_.TakeResponses(std::move(responses_));
  for (auto& [verifier, response] : responses_) reply_(clock_.Now(), verifier, std::move(response));
  free_at_ = clock_.Now() > now ? clock_.Now() + between_steps_ : now;
  due_ = core_.HasWork() ? free_at_ : std::max(inbox_.next(), free_at_);
}

absl::Status DrafterMachine::CheckEmpty() const {
  if (core_.stats().num_sessions > 0) {
    return absl::InternalError(
        absl::StrCat("a drafter has ", core_.stats().num_sessions, " sessions at the end"));
  }
  return pool_.CheckConserved({});
}

}  // namespace tandem::plan
