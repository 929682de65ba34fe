#include "common/engine/paced_engine.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr double kMostMilliseconds = 60e3;

absl::StatusOr<absl::Duration> ParseMilliseconds(absl::string_view text) {
  double milliseconds = 0.0;
  // The comparison is false for NaN.
  if (!absl::SimpleAtod(text, &milliseconds) || !(milliseconds >= 0.0 && milliseconds <= kMostMilliseconds)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pace: \"", text.substr(0, 40), "\", expected milliseconds from 0 to ", kMostMilliseconds));
  }
  return absl::Milliseconds(milliseconds);
}

}  // namespace

absl::Duration Pace::StepTime(size_t rows) const {
  return rows == 0 ? absl::ZeroDuration() : first_row + static_cast<int64_t>(rows - 1) * further_row;
}

absl::StatusOr<Pace> ParsePace(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '+');
  if (parts.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("pace: \"", text.substr(0, 40), "\", expected FIRST or FIRST+FURTHER in milliseconds"));
  }
  Pace pace;
  TANDEM_ASSIGN_OR_RETURN(pace.first_row, ParseMilliseconds(parts[0]));
  if (parts.size() == 2) {
    TANDEM_ASSIGN_OR_RETURN(pace.further_row, ParseMilliseconds(parts[1]));
  }
  return pace;
}

std::string DescribePace(const Pace& pace) {
  std::string text = absl::StrCat("at least ", absl::ToDoubleMilliseconds(pace.first_row), " ms");
  if (pace.further_row > absl::ZeroDuration()) {
    absl::StrAppend(&text, ", and ", absl::ToDoubleMilliseconds(pace.further_row),
                    " ms for each further row");
  }
  return text;
}

PacedEngine::PacedEngine(std::unique_ptr<Engine> engine, const Pace& pace, const Clock* clock,
                         WaitUntil wait_until)
    : engine_(std::move(engine)), pace_(pace), clock_(clock), wait_until_(std::move(wait_until)) {}

absl::Status PacedEngine::Step(absl::Span<const StepRow> rows) {
  TANDEM_RETURN_IF_ERROR(Start(rows));
  return Finish();
}

absl::Status PacedEngine::Start(absl::Span<const StepRow> rows) {
  end_ = clock_->Now() + pace_.StepTime(rows.size());
  return engine_->Start(rows);
}

absl::Status PacedEngine::Finish() {
  TANDEM_RETURN_IF_ERROR(engine_->Finish());
  if (clock_->Now() < end_) wait_until_(end_);
  return absl::OkStatus();
}

std::unique_ptr<Engine> PaceEngine(std::unique_ptr<Engine> engine, const Pace& pace) {
  static const auto* const clock = new SystemClock;
  return std::make_unique<PacedEngine>(std::move(engine), pace, clock,
                                       [](absl::Time until) { absl::SleepFor(until - absl::Now()); });
}

}  // namespace tandem
