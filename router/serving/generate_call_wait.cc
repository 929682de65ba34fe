// What a call waits for: tokens of its quota, its next attempt, and a verifier of its model that serves.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/release.h"
#include "common/rpc/status.h"
#include "router/serving/generate_call.h"

namespace tandem::router {
namespace {

// The RetryInfo delay for clients when every verifier is full.
constexpr absl::Duration kRetryDelay = absl::Seconds(1);

}  // namespace

VerifierNeeds GenerateCall::Needs() const {
  const uint64_t prompt = static_cast<uint64_t>(prepared_.prompt().ids_size());
  const v1::StopConditions& stopping = prepared_.stopping();
  // Without a limit a verifier gives as much as it has room for, and its answer sets the limit.
  const uint64_t output =
      stopping.has_max_tokens() ? uint64_t{stopping.max_tokens()} : uint64_t{relay_->tokens().size()} + 1;
  return {.tokens = prompt + output, .arithmetic = arithmetic_, .adapter = adapter_};
}

void GenerateCall::TellArithmetic(v1::GenerationChunk& chunk) {
  const uint64_t told = chunk.arithmetic();
  chunk.clear_arithmetic();
  if (arithmetic_ != 0) return;
  // If the verifier does not send it, its last known value.
  arithmetic_ = told != 0 ? told : attempt_->arithmetic();
  chunk.set_arithmetic(arithmetic_);
}

absl::Status GenerateCall::NoVerifier(absl::string_view last) const {
  return absl::UnavailableError(absl::StrCat("no verifier of model \"", prepared_.model(),
                                             "\" can be reached; tried ", attempts_, ", the last: ", last));
}

void GenerateCall::EndWithoutVerifier(const absl::Status& reason) {
  // A suitable verifier may come back, and full ones may have room soon.
  if (absl::IsUnavailable(reason) && WaitForVerifier(reason)) return;
  const bool is_final = absl::IsInvalidArgument(reason) || absl::IsNotFound(reason);
  End(is_final ? reason : WithRetryAfter(reason, kRetryDelay));
}

bool GenerateCall::WaitForVerifier(const absl::Status& reason) {
  const std::optional<absl::Time> end =
      failover_.WaitUntil(router_.clock().Now(), router_.verifiers().longest_wait());
  if (!end.has_value()) return false;
  std::weak_ptr<GenerateCall> weak = weak_from_this();
  wait_ = router_.verifiers().BeginWait(model_, [weak] {
    std::shared_ptr<GenerateCall> call = weak.lock();
    if (call == nullptr) return;
    call->OnVerifierServes();
    ReleaseElsewhere(std::move(call));
  });
  if (wait_ == nullptr) return false;
  wait_reason_ = reason;
  live_.OnNote(absl::StrCat("Waits for a verifier: ", reason.message()));
  RetryAt(std::min(deadline_, *end));
  return true;
}

void GenerateCall::OnVerifierServes() {
  absl::MutexLock lock(&mutex_);
  if (status_.has_value() || wait_ == nullptr) return;
  wait_.reset();
  ++alarms_;
  retry_alarm_->Cancel();
  record_.OnWaited("served");
  failover_.OnVerifierServes();
  if (attempts_ > 0 && !router_.verifiers().TakeRetry()) {
    record_.OnRetry("refused");
    End(absl::UnavailableError(
        absl::StrCat(wait_reason_.message(), "; the router's budget for retries is used up")));
  } else {
    StartAttempt();
  }
  Advance();
}

void GenerateCall::OnWaitOver() {
  wait_.reset();
  record_.OnWaited("timed out");
  const absl::Time now = router_.clock().Now();
  End(now >= deadline_
          ? absl::DeadlineExceededError("the call's deadline passed while it waited for a verifier")
          : absl::UnavailableError(absl::StrCat(wait_reason_.message(), "; waited for ",
                                                absl::FormatDuration(now - failover_.wait_began()))));
}

void GenerateCall::RetryAt(absl::Time when) {
  retry_alarm_ = std::make_unique<grpc::Alarm>();
  retry_alarm_->Set(absl::ToChronoTime(when), [weak = weak_from_this(), alarm = ++alarms_](bool in_time) {
    std::shared_ptr<GenerateCall> call = weak.lock();
    if (call == nullptr) return;
    if (in_time) call->OnRetryTime(alarm);
    ReleaseElsewhere(std::move(call));
  });
}

void GenerateCall::OnRetryTime(int alarm) {
  absl::MutexLock lock(&mutex_);
  if (status_.has_value() || alarm != alarms_) return;
  if (wait_ != nullptr) {
    OnWaitOver();
  } else {
    StartAttempt();
  }
  Advance();
}

void GenerateCall::KeepTools(const v1::GenerateRequest& request) {
  if (request.has_constraint() || !prepared_.has_constraint()) return;
  for (const v1::Tool& tool : request.chat().tools()) {
    v1::Tool& kept = *tools_.add_tools();
    kept.set_name(tool.name());
    if (tool.has_input()) kept.mutable_input();
  }
  *tools_.mutable_tool_choice() = request.chat().tool_choice();
}

absl::Status GenerateCall::ReserveTokens(uint64_t tokenized) {
  const auto prompt = static_cast<uint64_t>(prepared_.prompt().ids_size());
  // What the client has already is computed like a prompt; it counts for max_tokens.
  const auto emitted = static_cast<uint64_t>(prepared_.emitted().ids_size());
  const auto& stopping = prepared_.stopping();
  const auto context = static_cast<uint64_t>(router_.model(model_).context_length);
  const uint64_t most = stopping.has_max_tokens() ? prompt + stopping.max_tokens() : context;
  const uint64_t least = prompt + emitted;
  TANDEM_ASSIGN_OR_RETURN(
      reserved_tokens_,
      router_.admission().Reserve(*tenant_, std::clamp(most, least, std::max(context, least)), tokenized));
  used_tokens_ = prompt + emitted;
  return absl::OkStatus();
}

}  // namespace tandem::router
