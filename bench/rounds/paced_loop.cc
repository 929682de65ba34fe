#include "bench/rounds/paced_loop.h"

#include <algorithm>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "verifier/session/output_assembler.h"

namespace tandem::bench {
namespace {

constexpr LinkId kPacedLink = 1;
// Both sides are told the same: that the vocabularies agree is for the caller to know.
constexpr uint64_t kPacedFingerprint = 1;
constexpr char kPacedModel[] = "draft";
constexpr uint32_t kLargestStep = 64;

RoundTimeModel RoundTimes(const Pace& pace) {
  return RoundTimeModel(
      {{.rows = 1, .seconds = absl::ToDoubleSeconds(pace.StepTime(1))},
       {.rows = kLargestStep, .seconds = absl::ToDoubleSeconds(pace.StepTime(kLargestStep))}});
}

}  // namespace

void SimulatedEngine::Spend(absl::Span<const StepRow> rows) {
  const absl::Duration takes = pace_.StepTime(rows.size());
  end_ = clock_->Now() + takes;
  busy_ += takes;
  rows_ += rows.size();
}

absl::Status SimulatedEngine::Step(absl::Span<const StepRow> rows) {
  Spend(rows);
  const absl::Status status = engine_->Step(rows);
  clock_->MoveTo(end_);
  return status;
}

absl::Status SimulatedEngine::Start(absl::Span<const StepRow> rows) {
  Spend(rows);
  return engine_->Start(rows);
}

absl::Status SimulatedEngine::Finish() {
  const absl::Status status = engine_->Finish();
  clock_->MoveTo(std::max(clock_->Now(), end_));
  return status;
}

absl::StatusOr<std::unique_ptr<PacedLoop>> PacedLoop::Make(const Options& options, Engine* target,
                                                           Engine* drafter,
                                                           std::shared_ptr<const Tokenizer> tokenizer) {
  if (target->config().vocab_size != drafter->config().vocab_size) {
    return absl::FailedPreconditionError(absl::StrCat("the drafter has ", drafter->config().vocab_size,
                                                      " tokens, the target ", target->config().vocab_size));
  }
  return std::unique_ptr<PacedLoop>(new PacedLoop(options, target, drafter, std::move(tokenizer)));
}

PacedLoop::PacedLoop(const Options& options, Engine* target, Engine* drafter,
                     std::shared_ptr<const Tokenizer> tokenizer)
    : options_(options),
      tokenizer_(std::move(tokenizer)),
      target_(target, options.target_pace, &verifier_clock_),
      draft_model_(drafter, options.draft_pace, &drafter_clock_),
      target_pool_({.num_blocks = target->num_blocks()}),
      draft_pool_({.num_blocks = drafter->num_blocks()}),
      core_({.expand_width = options.expand_width},
            {{.name = kPacedModel,
              .engine = &draft_model_,
              .pool = &draft_pool_,
              .vocabulary_fingerprint = kPacedFingerprint,
              .context_length = std::min(static_cast<uint32_t>(drafter->config().max_context),
                                         drafter->num_blocks() * kBlockTokens)}},
            &drafter_clock_),
      scheduler_({.max_running = std::max(options.concurrency, 1u),
                  .limits = options.limits,
                  .window_policy = options.window_policy,
                  .vocabulary_fingerprint = kPacedFingerprint,
                  .local_drafter = options.local_drafter},
                 &target_, &target_pool_, RoundTimes(options.target_pace), &verifier_clock_,
                 static_cast<SchedulerListener*>(this)),
      drafter_free_(drafter_clock_.Now()) {
  scheduler_.OnLinkUp(kPacedLink);
}

absl::Status PacedLoop::SubmitNext() {
  const Request& next = (*work_)[num_submitted_];
  SessionRequest request{
      .prompt = next.prompt,
      .max_tokens = next.max_tokens,
      .sampling = next.sampling,
      .output = std::make_unique<OutputAssembler>(tokenizer_, StopRules{.max_tokens = next.max_tokens}),
      .speculate = next.drafted};
  if (next.drafted) {
    request.drafter = DrafterBinding{.link = kPacedLink, .name = kPacedModel, .draft_model = kPacedModel};
  }
  request_of_[++last_session_] = num_submitted_++;
  return scheduler_.Submit(last_session_, std::move(request));
}

absl::StatusOr<PacedLoop::Report> PacedLoop::Run(const std::vector<Request>& requests) {
  report_ = Report{.outputs = std::vector<TokenIds>(requests.size())};
  work_ = &requests;
  num_submitted_ = num_finished_ = 0;
  request_of_.clear();
  const absl::Time start = verifier_clock_.Now();
  const absl::Duration verified = target_.busy();
  const absl::Duration drafted = draft_model_.busy();
  const uint64_t draft_rows = draft_model_.rows();
  while (num_finished_ < requests.size()) {
    while (num_submitted_ < requests.size() && num_submitted_ - num_finished_ < options_.concurrency) {
      TANDEM_RETURN_IF_ERROR(SubmitNext());
    }
    const absl::Time verifier_due = VerifierDue();
    const absl::Time drafter_due = DrafterDue();
    if (std::min(verifier_due, drafter_due) == absl::InfiniteFuture()) {
      return absl::InternalError("requests run, and neither verifier nor drafter has anything to do");
    }
    if (drafter_due <= verifier_due) {
      RunDrafter(drafter_due);
    } else {
      TANDEM_RETURN_IF_ERROR(RunVerifier(verifier_due));
    }
    TANDEM_RETURN_IF_ERROR(failure_);
  }
  report_.time = verifier_clock_.Now() - start;
  report_.verifier_busy = target_.busy() - verified;
  report_.drafter_busy = draft_model_.busy() - drafted;
  report_.draft_rows = draft_model_.rows() - draft_rows;
  return std::move(report_);
}

absl::Time PacedLoop::VerifierDue() const {
  const absl::Time work = in_flight_ ? target_.end() : scheduler_.NextWake();
  const absl::Time due = responses_.empty() ? work : std::min(work, responses_.front().first);
  return std::max(due, verifier_clock_.Now());
}

absl::Time PacedLoop::DrafterDue() const {
  const absl::Time work = core_.HasWork() ? drafter_free_ : absl::InfiniteFuture();
  return requests_.empty() ? work : std::max(drafter_free_, std::min(work, requests_.front().first));
}

absl::Status PacedLoop::RunVerifier(absl::Time now) {
  verifier_clock_.MoveTo(now);
  bool moved = false;
  while (!responses_.empty() && responses_.front().first <= now) {
    scheduler_.OnDraftResponse(kPacedLink, responses_.front().second);
    responses_.pop_front();
    moved = true;
  }
  if (in_flight_ && now >= target_.end()) {
    scheduler_.Conclude();
    in_flight_ = false;
    moved = true;
  }
  if (in_flight_) return absl::OkStatus();
  in_flight_ = scheduler_.Forward();
  if (!in_flight_ && !moved && scheduler_.NextWake() <= now) {
    return absl::InternalError("the verifier woke for nothing");
  }
  return absl::OkStatus();
}

void PacedLoop::RunDrafter(absl::Time now) {
  drafter_clock_.MoveTo(std::max(now, drafter_clock_.Now()));
  while (!requests_.empty() && requests_.front().first <= now) {
    core_.OnRequest(kPacedLink, requests_.front().second);
    requests_.pop_front();
  }
  SendResponses(drafter_clock_.Now());
  const absl::Duration busy = draft_model_.busy();
  if (core_.HasWork()) core_.Step();
  drafter_free_ = drafter_clock_.Now();
  if (in_flight_) target_.Delay(options_.shared * (draft_model_.busy() - busy));
  SendResponses(drafter_free_);
}

void PacedLoop::SendResponses(absl::Time now) {
  for (auto& [link, response] : core_.TakeResponses()) {
    responses_.emplace_back(now + options_.link, std::move(response));
  }
}

void PacedLoop::OnTokens(SessionId session, CommittedTokens tokens) {
  TokenIds& output = report_.outputs[request_of_.at(session)];
  for (const CommittedToken& token : tokens.tokens) output.push_back(token.token);
  report_.tokens += tokens.tokens.size();
}

void PacedLoop::OnFinished(SessionId, const absl::Status& status, const SessionSummary&) {
  ++num_finished_;
  if (!status.ok()) failure_ = status;
}

void PacedLoop::OnRound(SessionId, const RoundReport& report) {
  if (report.with_prefill) return;
  ++report_.rounds;
  report_.nodes += report.nodes;
  report_.accepted += report.accepted;
  report_.waited += absl::Seconds(report.wait_seconds);
  if (report.kind == RoundKind::kUndrafted) return;
  ++report_.drafted;
  if (report.kind == RoundKind::kHit) ++report_.hits;
}

void PacedLoop::OnDraftRequest(LinkId, DraftRequest request) {
  if (const auto* const commit = std::get_if<Commit>(&request.event);
      commit != nullptr && commit->budget.depth > 0 && !commit->new_root.has_value()) {
    ++report_.after_misses;
  }
  requests_.emplace_back(verifier_clock_.Now() + options_.link, std::move(request));
}

void PacedLoop::OnProtocolViolation(LinkId, absl::string_view what, bool) {
  failure_ = absl::InternalError(absl::StrCat("the drafter broke the protocol: ", what));
}

}  // namespace tandem::bench
