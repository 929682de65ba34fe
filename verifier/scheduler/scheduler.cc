#include "verifier/scheduler/scheduler.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Steps of constraints in one pass of the engine, unless one session takes more.
constexpr uint64_t kMostConstraintSteps = 400'000;

// A response that came sooner was sent before the request.
constexpr absl::Duration kShortestWait = absl::Microseconds(20);

absl::Status DeadlineStatus() {
  return absl::DeadlineExceededError("the request's deadline passed before the generation was complete");
}

}  // namespace

Scheduler::Scheduler(const Options& options, Engine* engine, BlockPool* pool, RoundTimeModel round_time,
                     const Clock* clock, SchedulerListener* listener)
    : options_(options),
      window_policy_(options.window_policy),
      policy_options_(options.policy_options),
      engine_(engine),
      pool_(pool),
      round_time_(std::move(round_time)),
      clock_(clock),
      listener_(listener),
      rule_(MakeVerificationRule(options.verification_rule)),
      control_({.share = options.control_share}) {
  if (options.local_drafter.has_value()) {
    local_drafters_ = std::make_unique<SourceHost>(*options.local_drafter);
  }
  const FeatureStore::Options features = FeatureStore::OptionsFor(*engine, options.max_feature_bytes);
  if (engine->has_features() && FeatureStore::FitsAny(features)) {
    features_ = std::make_unique<FeatureStore>(features);
  }
}

Scheduler::~Scheduler() = default;

absl::Status Scheduler::Submit(SessionId session, SessionRequest request) {
  highest_session_ = std::max(highest_session_, session);
  const uint64_t length = request.prompt.size() + uint64_t{request.max_tokens};
  const uint64_t num_blocks = length / kBlockTokens + (length % kBlockTokens != 0);
  if (num_blocks > pool_->num_blocks()) {
    return absl::OutOfRangeError(absl::StrCat("prompt and max_tokens: ", length, " tokens need ", num_blocks,
                                              " blocks of keys and values, expected at most ",
                                              pool_->num_blocks(), " blocks of ", kBlockTokens, " tokens"));
  }
  // Sessions that fit into the next step only pass through the queue.
  const size_t free_places = short_of_memory_ ? 0 : options_.max_running - running_.size();
  if (waiting_.size() >= options_.max_waiting + free_places) {
    return absl::ResourceExhaustedError(absl::StrCat(running_.size(), " requests are running and ",
                                                     waiting_.size(), " waiting, the queue is full"));
  }
  WindowLimits limits = options_.limits;
  if (request.max_window > 0) limits.max_depth = std::min(limits.max_depth, request.max_window);
  const bool samples_drafts = SamplesDrafts(options_.verification_rule, request.sampling);
  if (samples_drafts && options_.verification_rule == VerificationRuleKind::kBlock) {
    limits.shape = TreeShape::kChain;  // What the rule is made for.
    limits.branching = 1;
    limits.nodes_per_level = 1;
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<WindowPolicy> policy, MakePolicy(request, request.emitted));
  std::optional<DrafterBinding> drafter = std::exchange(request.drafter, std::nullopt);
  std::optional<DrafterBinding> partner = std::exchange(request.partner, std::nullopt);
  std::unique_ptr<DraftSource> prediction = std::move(request.prediction);
  auto queued = std::make_unique<Session>(session, std::move(request), std::move(policy), limits, pool_,
                                          engine_->config().vocab_size);
  if (samples_drafts) queued->SampleDrafts(rule_.get());
  const SessionRequest& asked = queued->request();
  const bool moves = asked.constraint != nullptr && asked.constraint->moves_probabilities();
  if (engine_->chooses() && !samples_drafts && asked.num_logprobs < 0 && !moves) {
    queued->ChooseInEngine();
  }
  if (asked.constraint != nullptr) asked.constraint->TimeBy(clock_);
  if (asked.speculate) AddSources(*queued, std::move(prediction));
  Session& submitted = *queued;
  Enqueue(std::move(queued));
  // A record stays as long as a session that is in the queue or running has it.
  const auto bind = [&](DraftRole role, DrafterBinding to) {
    DrafterRecord* const record = RecordOf(to);
    submitted.Bind(role, std::move(to), record, clock_->Now());
  };
  if (drafter.has_value()) bind(DraftRole::kDrafter, *std::move(drafter));
  // Draws of two drafters cannot be merged.
  if (partner.has_value() && !samples_drafts) bind(DraftRole::kPartner, *std::move(partner));
  return absl::OkStatus();
}

void Scheduler::AddSources(Session& session, std::unique_ptr<DraftSource> prediction) {
  const auto add = [&](DraftOrigin origin, std::unique_ptr<DraftSource> source, size_t num_read,
                       ScoreCalibration* calibration) {
    session.AddSource(OwnSource(origin, std::move(source), num_read, calibration, clock_));
  };
  const uint64_t salt = DraftSalt(session.request());
  // What a constraint leaves no choice about needs no drafter to guess it.
  if (SessionConstraint* const constraint = session.request().constraint.get(); constraint != nullptr) {
    constraint->SpellBy(&forced_spellings_, salt);
    add(DraftOrigin::kGrammar, std::make_unique<ForcedSource>(constraint), session.tokens().size(),
        &forced_calibration_);
  }
  if (prediction != nullptr) {
    add(DraftOrigin::kPrediction, std::move(prediction), session.tokens().size(), &prediction_calibration_);
  }
  if (local_drafters_ != nullptr) {
    add(DraftOrigin::kLocal, local_drafters_->NewSession(salt, options_.vocabulary_fingerprint), 0,
        &local_calibration_);
  }
}

void Scheduler::Finish(SessionId id, const absl::Status& status) {
  const auto found = running_.find(id);
  // While it still counts as running.
  found->second->SummariseCosts(CostsOf(*found->second));
  const std::unique_ptr<Session> session = std::move(found->second);
  running_.erase(found);
  short_of_memory_ = false;
  GiveUpSwap(*session, absl::CancelledError("the request ended"));
  for (const DraftRole role : kDraftRoles) {
    if (session->peer(role) != nullptr) CloseDraft(*session->peer(role));
  }
  listener_->OnFinished(id, status, session->summary());
}

void Scheduler::Cancel(SessionId session, const absl::Status& reason) {
  if (running_.contains(session)) {
    // The step in flight holds on to its sessions.
    if (in_flight_) {
      cancelled_.emplace_back(session, reason);
    } else {
      Finish(session, reason);
    }
    return;
  }
  const auto waiting =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [&](const std::unique_ptr<Session>& entry) { return entry->id() == session; });
  if (waiting == waiting_.end()) return;
  const std::unique_ptr<Session> cancelled = std::move(*waiting);
  waiting_.erase(waiting);
  short_of_memory_ = false;
  listener_->OnFinished(session, reason, cancelled->summary());
}

void Scheduler::ExpireDeadlines(absl::Time now) {
  std::vector<SessionId> expired;
  for (const std::unique_ptr<Session>& session : waiting_) {
    if (session->request().deadline <= now) expired.push_back(session->id());
  }
  for (const auto& [id, session] : running_) {
    if (session->request().deadline <= now) expired.push_back(id);
  }
  for (SessionId id : expired) Cancel(id, DeadlineStatus());
}

DrafterRecord* Scheduler::RecordOf(const DrafterBinding& binding) {
  return records_.Of(binding, [this](const DrafterRecord* record) {
    const auto holds = [record](const std::unique_ptr<Session>& session) { return session->Holds(record); };
    return std::any_of(waiting_.begin(), waiting_.end(), holds) ||
           std::any_of(running_.begin(), running_.end(),
                       [&](const auto& entry) { return holds(entry.second); });
  });
}

void Scheduler::PlanRounds(absl::Time now) {
  const bool prefills = std::any_of(running_.begin(), running_.end(),
                                    [](const auto& entry) { return !entry.second->prefilled(); });
  const bool ready = std::any_of(running_.begin(), running_.end(),
                                 [now](const auto& entry) { return entry.second->ReadyForRound(now); });
  if (!prefills && (!ready || IsHeld(now))) return;
  ReserveRoots();
  // Trees take what the others can spare: every root has its row, and prompts have a quarter of the step.
  const uint32_t for_prefill =
      prefills ? std::min(options_.prefill_chunk, std::max(1u, engine_->max_rows() / 4)) : 0;
  const uint32_t for_rounds = engine_->max_rows() - for_prefill;
  ChooseRounds(now, for_rounds);
  ChooseTrees(rounds_, for_rounds - static_cast<uint32_t>(rounds_.size()), for_prefill);
  for (Session* session : rounds_) session->PlanRound(now, rows_);
}

// A session that waits for drafts joins a step that others make anyway: its row costs little, and nodes
// drafted meanwhile are below the token that it gets. If there are more sessions than rows, those that need
// not wait come first, and among them the least recently served.
void Scheduler::ChooseRounds(absl::Time now, uint32_t max_rounds) {
  for (const auto& [id, session] : running_) {
    if (session->prefilled()) rounds_.push_back(session.get());
  }
  ShareConstraintSteps();
  if (rounds_.size() <= max_rounds) return;
  const auto turn = [now](const Session* session) {
    return std::tuple(!session->ReadyForRound(now), session->last_served(), session->id());
  };
  std::sort(rounds_.begin(), rounds_.end(),
            [&](const Session* a, const Session* b) { return turn(a) < turn(b); });
  rounds_.resize(max_rounds);
}

// Others' tokens wait for the masks of a step. Sessions whose constraints take long to follow take turns:
// those that were served last sit this step out when all together would take more than one may.
void Scheduler::ShareConstraintSteps() {
  const auto steps = [](const Session* session) {
    const SessionConstraint* const constraint = session->request().constraint.get();
    return constraint == nullptr ? 0 : constraint->round_steps();
  };
  uint64_t all = 0;
  for (const Session* session : rounds_) all += steps(session);
  if (all <= kMostConstraintSteps) return;
  std::stable_sort(rounds_.begin(), rounds_.end(),
                   [](const Session* a, const Session* b) { return a->last_served() < b->last_served(); });
  uint64_t taken = 0;
  std::erase_if(rounds_, [&](const Session* session) {
    const bool sits_out = taken > 0 && steps(session) > 0 && taken + steps(session) > kMostConstraintSteps;
    if (!sits_out) taken += steps(session);
    return sits_out;
  });
}

absl::Status Scheduler::StartEngine() {
  // Places for logits can only be given when the number of rows is known: the vector must not move
  // afterwards.
  const auto vocab_size = static_cast<size_t>(engine_->config().vocab_size);
  size_t num_logit_rows = 0;
  for (const Session* session : rounds_) {
    if (!session->chooses_in_engine()) num_logit_rows += session->num_rows();
  }
  for (const Session* session : prefills_) num_logit_rows += session->prompt_rows().count;
  if (logits_.size() < num_logit_rows * vocab_size) logits_.resize(num_logit_rows * vocab_size);
  float* place = logits_.data();
  for (const Session* session : rounds_) {
    if (session->chooses_in_engine()) continue;
    for (uint32_t i = 0; i < session->num_rows(); ++i, place += vocab_size) {
      rows_[session->first_row() + i].logits = place;
    }
  }
  for (const Session* session : prefills_) {
    const Session::RowRange described = session->prompt_rows();
    for (uint32_t i = 0; i < described.count; ++i, place += vocab_size)
      rows_[described.first + i].logits = place;
  }
  feature_step_.Plan(features_.get(), absl::MakeSpan(rows_));
  return engine_->Start(rows_);
}

void Scheduler::ConcludeRound(Session& session, absl::Time now) {
  if (session.request().max_tokens == 0) return session.EndScored();
  session.set_last_served(++num_rounds_);
  const size_t first_copy = copies_.size();
  Session::RoundResult result = session.ConcludeRound(now, rows_, CostsOf(session), &copies_);
  KeepAccepted(session, absl::MakeConstSpan(copies_).subspan(first_copy));
  const std::optional<double> seconds = session.TakeRoundSeconds(now, result.report.committed);
  CountYield(session, result.report, seconds);
  if (seconds.has_value() && *seconds >= 0.0) {
    // The prompts beside it would have been computed once.
    const auto rounds = static_cast<uint32_t>(rounds_.size());
    const double plain_forwards =
        round_time_.Seconds(rounds + num_prefill_rows_, step_context_) +
        (result.report.committed - 1.0) * round_time_.Seconds(rounds, step_context_);
    // Work between forward passes would also occur between plain ones, except the waiting.
    const double between =
        std::max(*seconds - absl::ToDoubleSeconds(forward_time_) - step_wait_seconds_, 0.0);
    result.report.round_seconds = *seconds;
    result.report.plain_seconds = plain_forwards + result.report.committed * between;
  }
  result.report.forward_start = forward_start_;
  result.report.forward_time = forward_time_;
  result.report.with_prefill = std::find(prefills_.begin(), prefills_.end(), &session) != prefills_.end();
  if (result.suspend_draft) SuspendDraft(session);
  if (result.resume_draft) OpenDraft(session, DraftRole::kDrafter);
  // Commits go first, because drafters wait for them, and the drafter's before the others'.
  for (const DraftRole role : kDraftRoles) {
    std::optional<Commit>& commit = result.commits[static_cast<size_t>(role)];
    if (commit.has_value()) SendCommit(session, *session.peer(role), *std::move(commit));
  }
  const DraftPeer* const partner = session.peer(DraftRole::kPartner);
  if (partner != nullptr && !partner->adds()) {
    LoseDraft(session, DraftRole::kPartner,
              {.reason = absl::CancelledError("it adds too little to the drafter"), .for_good = true});
  }
  if (session.request().trace_rounds) {
    result.committed.trace = RoundTrace{.report = result.report,
                                        .verify_start = forward_start_,
                                        .verify_time = forward_time_,
                                        .growth = session.TakeGrowthTrace()};
    if (session.request().trace_trees) {
      result.committed.trace->tree = session.tree();
      result.committed.trace->accepted.assign(session.accepted().begin(), session.accepted().end());
      result.committed.trace->masked = session.TraceMasked();
    }
  }
  if (!result.committed.tokens.empty()) listener_->OnTokens(session.id(), std::move(result.committed));
  listener_->OnRound(session.id(), result.report);
}

absl::Status Scheduler::ConcludeRounds(absl::Time now) {
  copies_.clear();
  feature_step_.KeepCommitted(rows_, features_.get());
  step_wait_seconds_ = 0.0;
  for (const Session* session : rounds_) {
    step_wait_seconds_ = std::max(step_wait_seconds_, session->round_wait_seconds());
  }
  for (Session* session : prefills_) TellPrompt(*session);
  for (Session* session : rounds_) {
    TellPrompt(*session);  // Of one without a prefill.
    ConcludeRound(*session, now);
  }
  ObserveYields();
  TANDEM_RETURN_IF_ERROR(engine_->CopyKv(copies_));
  for (Session* session : prefills_) session->SettleKv();
  for (Session* session : rounds_) session->SettleKv();
  for (Session* session : rounds_) {
    if (session->finished()) Finish(session->id(), session->end_status());
  }
  SendFeatures();
  DecideWaits(now);
  return absl::OkStatus();
}

bool Scheduler::Forward() {
  assert(!in_flight_);
  const absl::Time start = clock_->Now();
  ExpireDeadlines(start);
  short_of_memory_ = false;
  if (std::exchange(forget_prefixes_, false)) pool_->ForgetPrefixes();
  Admit();
  SettleSwaps(start);
  RetryDrafts(start);
  rows_.clear();
  rounds_.clear();
  prefills_.clear();
  num_prefill_rows_ = 0;
  num_prompt_logit_rows_ = 0;
  num_preemptions_ = 0;
  plain_step_ = IsPlainStep();
  PlanRounds(start);
  PlanPrefill(start);
  if (rows_.empty()) return false;
  step_context_ = MeanContext();
  forwarded_ = StartEngine();
  forward_start_ = start;
  forward_time_ = clock_->Now() - start;
  in_flight_ = true;
  awaited_ = false;
  return true;
}

void Scheduler::Await() {
  assert(in_flight_);
  if (std::exchange(awaited_, true) || !forwarded_.ok()) return;
  const absl::Time start = clock_->Now();
  bool masked = false;
  for (Session* session : rounds_) {
    SessionConstraint* const constraint = session->request().constraint.get();
    if (constraint == nullptr || session->chooses_in_engine() || !engine_->overlaps()) continue;
    constraint->MaskAhead(session->tree().nodes());
    masked = true;
  }
  const absl::Time finish = clock_->Now();
  forwarded_ = engine_->Finish();
  const absl::Duration wait = clock_->Now() - finish;
  // A pass that was over by then may have ended before the masks.
  hidden_mask_time_ = masked && wait >= kShortestWait ? finish - start : absl::ZeroDuration();
  // The owner's work in between is not part of the step, unless the engine computed meanwhile. If the engine
  // was done first, its end time is unknown.
  forward_time_ = engine_->overlaps() ? clock_->Now() - forward_start_ : forward_time_ + wait;
  timed_ = !engine_->overlaps() || wait >= kShortestWait;
}

void Scheduler::Conclude() {
  Await();
  in_flight_ = false;
  if (forwarded_.ok()) forwarded_ = ConcludeRounds(clock_->Now());
  for (const auto& [session, reason] : std::exchange(cancelled_, {})) Cancel(session, reason);
  if (!forwarded_.ok()) {
    // The engine refuses only what the scheduler got wrong; no session can be trusted after that.
    const absl::Status internal =
        absl::InternalError(absl::StrCat("the engine failed: ", forwarded_.message()));
    while (!running_.empty()) Finish(running_.begin()->first, internal);
    return;
  }
  const StepReport report{.rows = static_cast<uint32_t>(rows_.size()),
                          .prefill_rows = num_prefill_rows_,
                          .sessions = static_cast<uint32_t>(rounds_.size()),
                          .preemptions = num_preemptions_,
                          .seconds = absl::ToDoubleSeconds(forward_time_),
                          .modelled_seconds = round_time_.Uncorrected(
                              std::max<uint32_t>(static_cast<uint32_t>(rows_.size()), 1), step_context_),
                          .hidden_mask_seconds = absl::ToDoubleSeconds(hidden_mask_time_),
                          .plain = plain_step_};
  if (timed_) round_time_.Observe(report.rows, report.seconds, step_context_);
  listener_->OnStep(report);
}

absl::Time Scheduler::NextWake() const {
  if (MayAdmit()) return absl::InfinitePast();
  absl::Time wake = absl::InfiniteFuture();
  const absl::Time now = clock_->Now();
  for (const std::unique_ptr<Session>& session : waiting_) wake = std::min(wake, session->request().deadline);
  // A step is made as soon as some session is ready and none is waited for by the others any more.
  absl::Time ready_at = absl::InfiniteFuture();
  absl::Time held_until = absl::InfinitePast();
  for (const auto& [id, session] : running_) {
    if (!session->prefilled()) return absl::InfinitePast();
    wake = std::min(wake, session->request().deadline);
    ready_at = std::min(ready_at, session->ReadyForRound(now) ? absl::InfinitePast() : session->wait_until());
    held_until = std::max(held_until, session->hold_until(now));
  }
  if (held_until > now) ready_at = std::max(ready_at, held_until);
  return std::min(wake, ready_at);
}

}  // namespace tandem
