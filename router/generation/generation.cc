#include "router/generation/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "router/models/tool_choice.h"

namespace tandem::router {
namespace {

// The client's clock decides its deadline; a cancellation this close to ours was that.
constexpr absl::Duration kDeadlineTolerance = absl::Milliseconds(20);
// The RetryInfo delay for clients when every verifier is full.
constexpr absl::Duration kRetryDelay = absl::Seconds(1);

}  // namespace

Generation::Generation(GenerationHost* host, const Options& options,
                       std::vector<GenerationObserver*> observers)
    : host_(*host), options_(options), observers_(std::move(observers)) {}

// Preparation.

void Generation::Reach(Stage stage, absl::Time when) {
  facts_.reached[static_cast<size_t>(stage)] = when;
  Tell([&](GenerationObserver& observer) { observer.OnStage(stage, facts_, when); });
}

void Generation::OnPrepared(Prepared prepared) {
  parsed_ = std::move(prepared.parsed);
  tools_ = std::move(prepared.tools);
  v1::VerifierGenerateRequest& request = facts_.request;
  const absl::Time now = host_.Now();
  Tell([&](GenerationObserver& observer) { observer.OnPrepared(facts_, request, now); });
  arithmetic_ = facts_.asked->resume().arithmetic();
  Relay::Names names{.model = request.model(),
                     .drafter = request.speculation().drafter(),
                     .partner = request.speculation().partner()};
  if (facts_.asked->output().prompt_token_ids()) {
    names.prompt.assign(request.prompt().ids().begin(), request.prompt().ids().end());
  }
  const auto& emitted = request.emitted().ids();
  relay_.emplace(
      std::move(names), std::vector<uint32_t>(emitted.begin(), emitted.end()),
      request.output().has_prompt_logprobs() ? static_cast<uint32_t>(request.prompt().ids_size()) : 0);
  facts_.num_output = relay_->tokens().size();
  facts_.asked = nullptr;  // It is as large as the prompt, and nobody needs it any more.
  StartAttempt();
  Advance();  // When there was no place for it.
}

// Attempts.

VerifierNeeds Generation::Needs() const {
  const uint64_t prompt = static_cast<uint64_t>(facts_.request.prompt().ids_size());
  const v1::StopConditions& stopping = facts_.request.stopping();
  // Without a limit a verifier gives as much as it has room for, and its answer sets the limit.
  const uint64_t output =
      stopping.has_max_tokens() ? uint64_t{stopping.max_tokens()} : uint64_t{relay_->tokens().size()} + 1;
  return {.tokens = prompt + output, .arithmetic = arithmetic_, .adapter = facts_.adapter};
}

void Generation::StartAttempt() {
  // Verifiers that are known not to serve would only refuse it, and would then be ejected.
  if (!host_.MayServe() && WaitForVerifier(host_.NoneServes())) return;
  const int attempt = ++attempts_;
  absl::StatusOr<std::unique_ptr<GenerationHost::Attempt>> begun =
      host_.BeginAttempt(attempt, facts_.request, failover_.tried(), Needs());
  if (!begun.ok()) {
    std::optional<absl::Duration> pause;
    if (!absl::IsInvalidArgument(begun.status())) {
      pause = failover_.NextAsking(host_.num_verifiers(), !relay_->tokens().empty());
    }
    if (!pause.has_value()) return EndWithoutVerifier(begun.status());
    return RetryAt(host_.Now() + *pause);
  }
  attempt_ = *std::move(begun);
  relay_->OnAttempt(attempt_->endpoint());
  v1::VerifierGenerateRequest& request = facts_.request;
  request.mutable_emitted()->mutable_ids()->Assign(relay_->tokens().begin(), relay_->tokens().end());
  request.set_arithmetic(arithmetic_);
  // Of a prompt that is only scored, what the client has is computed again.
  if (relay_->prompt_told() && !facts_.OnlyScores()) request.mutable_output()->clear_prompt_logprobs();
  const absl::Time now = host_.Now();
  Tell([&](GenerationObserver& observer) { observer.OnAttempt(facts_, attempt, attempt_->endpoint(), now); });
  attempt_->Start(request);
}

void Generation::EndAttempt(const absl::Status& status) {
  if (attempt_ == nullptr) return;
  attempt_.reset();
  const absl::Time now = host_.Now();
  Tell([&](GenerationObserver& observer) { observer.OnAttemptEnded(facts_, status, now); });
}

absl::Status Generation::NoVerifier(absl::string_view last) const {
  return absl::UnavailableError(absl::StrCat("no verifier of model \"", facts_.request.model(),
                                             "\" can be reached; tried ", attempts_, ", the last: ", last));
}

void Generation::EndWithoutVerifier(const absl::Status& reason) {
  // A suitable verifier may come back, and full ones may have room soon.
  if (absl::IsUnavailable(reason) && WaitForVerifier(reason)) return;
  const bool is_final = absl::IsInvalidArgument(reason) || absl::IsNotFound(reason);
  End(is_final ? reason : WithRetryAfter(reason, kRetryDelay));
}

void Generation::TellTurn(Turn turn, const absl::Status& reason) {
  const absl::Time now = host_.Now();
  Tell([&](GenerationObserver& observer) { observer.OnTurn(turn, reason, facts_, now); });
}

void Generation::Retry(const absl::Status& reason) {
  const std::optional<absl::Duration> pause =
      failover_.NextAttempt(host_.num_verifiers(), !relay_->tokens().empty());
  if (!pause.has_value()) {
    const bool unavailable = absl::IsUnavailable(reason);
    absl::Status status = unavailable ? NoVerifier(reason.message()) : reason;
    if (!unavailable || !WaitForVerifier(status)) End(std::move(status));
    return;
  }
  if (!host_.TakeRetry()) {
    TellTurn(Turn::kRetryRefused, reason);
    return End(absl::UnavailableError(
        absl::StrCat(reason.message(), "; the router's budget for retries is used up")));
  }
  TellTurn(Turn::kRetry, reason);
  if (*pause == absl::ZeroDuration()) {
    StartAttempt();
  } else {
    RetryAt(host_.Now() + *pause);
  }
}

void Generation::RetryAt(absl::Time when) {
  host_.SetTimer(when, ++timers_);
}

bool Generation::WaitForVerifier(const absl::Status& reason) {
  const std::optional<absl::Time> end = failover_.WaitUntil(host_.Now(), options_.longest_wait);
  if (!end.has_value() || !host_.StartWaiting()) return false;
  waiting_ = true;
  wait_reason_ = reason;
  TellTurn(Turn::kWait, reason);
  RetryAt(std::min(options_.deadline, *end));
  return true;
}

void Generation::EndWait() {
  if (!std::exchange(waiting_, false)) return;
  host_.StopWaiting();
}

void Generation::OnVerifierServes() {
  if (status_.has_value() || !waiting_) return;
  EndWait();
  ++timers_;
  host_.CancelTimer();
  TellTurn(Turn::kServed, wait_reason_);
  failover_.OnVerifierServes();
  if (attempts_ > 0 && !host_.TakeRetry()) {
    TellTurn(Turn::kRetryRefused, wait_reason_);
    End(absl::UnavailableError(
        absl::StrCat(wait_reason_.message(), "; the router's budget for retries is used up")));
  } else {
    StartAttempt();
  }
  Advance();
}

void Generation::OnWaitOver() {
  EndWait();
  TellTurn(Turn::kWaitedInVain, wait_reason_);
  const absl::Time now = host_.Now();
  End(now >= options_.deadline
          ? absl::DeadlineExceededError("the call's deadline passed while it waited for a verifier")
          : absl::UnavailableError(absl::StrCat(wait_reason_.message(), "; waited for ",
                                                absl::FormatDuration(now - failover_.wait_began()))));
}

void Generation::OnTimer(int number) {
  if (status_.has_value() || number != timers_) return;
  if (waiting_) {
    OnWaitOver();
  } else {
    StartAttempt();
  }
  Advance();
}

const GenerationHost::Attempt* Generation::Rebind(const std::string& from, const v1::DrafterTarget& to) {
  if (status_.has_value() || !facts_.request.has_drafter() || facts_.drafter() != from) return nullptr;
  *facts_.request.mutable_drafter() = to;
  return attempt_.get();
}

// The verifier's events.

void Generation::OnVerifierEvent(int attempt, v1::GenerateResponse event) {
  if (!IsCurrent(attempt)) return;
  attempt_->OnEvent();
  // The limit is what the first verifier had room for, wherever the output goes on.
  if (event.has_started() && event.started().max_tokens() > 0 &&
      !facts_.request.stopping().has_max_tokens()) {
    facts_.request.mutable_stopping()->set_max_tokens(event.started().max_tokens());
  }
  const absl::StatusOr<bool> send = relay_->OnEvent(event);
  if (!send.ok()) {
    End(send.status());
  } else if (*send) {
    PassOn(attempt, std::move(event));
  } else {
    attempt_->Acknowledge();
  }
  Advance();
}

void Generation::PassOn(int attempt, v1::GenerateResponse event) {
  facts_.num_output = relay_->tokens().size();
  facts_.num_sent = relay_->num_tokens();
  if (event.has_chunk()) {
    failover_.OnProgress();
    TellArithmetic(*event.mutable_chunk());
  }
  if (event.has_finished()) facts_.decision.pending = nullptr;
  const absl::Time now = host_.Now();
  Tell([&](GenerationObserver& observer) { observer.OnEvent(facts_, event, now); });
  // Between verifier and router only.
  if (event.has_finished()) event.mutable_finished()->mutable_speculation()->clear_policy_state();
  if (parsed_.has_value()) parsed_->OnEvent(event);
  queue_.push_back({std::move(event), attempt});
}

void Generation::TellArithmetic(v1::GenerationChunk& chunk) {
  const uint64_t told = chunk.arithmetic();
  chunk.clear_arithmetic();
  if (arithmetic_ != 0) return;
  // If the verifier does not send it, its last known value.
  arithmetic_ = told != 0 ? told : attempt_->arithmetic();
  chunk.set_arithmetic(arithmetic_);
}

void Generation::OnVerifierDone(int attempt, const absl::Status& status) {
  if (!IsCurrent(attempt)) return;
  // The client's clock may be behind by a little.
  const bool in_time = host_.Now() < options_.deadline - kDeadlineTolerance;
  Relay::End end = relay_->OnEnd(status, in_time);
  if (!tools_.tools().empty()) end.status = ToolError(tools_, end.status);
  if (absl::IsAborted(status) && end.retry) {
    attempt_->OnChanged();
  } else if (absl::IsUnavailable(end.status) || absl::IsInternal(end.status)) {
    attempt_->OnFailure();
  } else {
    attempt_->OnSuccess();
  }
  const size_t verifier = attempt_->index();
  if (end.retry) failover_.OnFailed(verifier, host_.num_verifiers());
  EndAttempt(status);
  if (end.retry) {
    Retry(end.status);
  } else {
    End(std::move(end.status));
  }
  Advance();
}

// The end, and the client.

void Generation::End(absl::Status status) {
  if (status_.has_value()) return;
  status_ = std::move(status);
  EndAttempt(*status_);
  EndWait();
  host_.CancelTimer();
  // The work is done, so a client that does not read the queue keeps nobody out.
  host_.GiveUpPlace(facts_.num_sent);
}

void Generation::Abandon(const absl::Status& status) {
  End(status);
  Advance();
}

void Generation::Advance() {
  if (writing_ || finished_ || breaking_) return;
  if (!queue_.empty()) {
    writing_ = true;
    write_began_ = host_.Uptime();
    if (!watching_) WatchWrite();
    host_.Write(queue_.front().event);
    return;
  }
  if (!status_.has_value()) return;
  finished_ = true;
  const absl::Time now = host_.Now();
  Tell([&](GenerationObserver& observer) { observer.OnEnded(facts_, *status_, now); });
  host_.Finish(*status_);
}

// Nobody reads the queue any more. A message in flight stays until the host releases it.
void Generation::DropQueue() {
  queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
}

void Generation::OnClientGone() {
  const bool late = host_.Now() >= options_.deadline - kDeadlineTolerance;
  End(late ? absl::DeadlineExceededError("the call's deadline has passed")
           : absl::CancelledError("the client cancelled the call or disconnected"));
  DropQueue();
  Advance();
}

void Generation::OnWriteDone(bool ok) {
  writing_ = false;
  const int attempt = queue_.front().attempt;
  queue_.pop_front();
  if (!ok) return OnClientGone();
  if (attempt_ != nullptr && attempt == attempts_) attempt_->Acknowledge();
  Advance();
}

void Generation::WatchWrite() {
  watching_ = true;
  host_.SetWriteTimer(options_.write_stall_timeout - (host_.Uptime() - write_began_));
}

bool Generation::OnWriteTimer() {
  watching_ = false;
  // The next write watches again.
  if (!writing_ || finished_) return false;
  if (host_.Uptime() - write_began_ < options_.write_stall_timeout) {
    WatchWrite();
    return false;
  }
  absl::Status stalled = absl::ResourceExhaustedError("the client read none of its output for too long");
  End(stalled);
  // Also of a call that was over but for the delivery.
  status_ = std::move(stalled);
  DropQueue();
  breaking_ = true;
  return true;
}

void Generation::OnClientBroken() {
  breaking_ = false;
  Advance();
}

}  // namespace tandem::router
