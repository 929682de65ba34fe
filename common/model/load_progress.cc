#include "common/model/load_progress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"

namespace tandem {
namespace {

constexpr int kBarWidth = 24;
constexpr absl::Duration kDrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kLogInterval = absl::Seconds(3);

std::string BytesText(uint64_t bytes) {
  if (bytes >= 1'000'000'000) return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

// "123.4 MB/s", or nothing when no time has passed.
std::string RateText(uint64_t bytes, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  if (seconds <= 0) return "";
  return absl::StrFormat("%.1f MB/s", static_cast<double>(bytes) / 1e6 / seconds);
}

// "12 s", if the rest takes as long for each byte as what is done; nothing when nothing is.
std::string LeftText(uint64_t done, uint64_t total, absl::Duration elapsed) {
  if (done == 0) return "";
  const double seconds =
      absl::ToDoubleSeconds(elapsed) * static_cast<double>(total - done) / static_cast<double>(done);
  return absl::StrFormat("%.0f s", std::ceil(seconds));
}

int Percent(double ratio) {
  return static_cast<int>(ratio * 100.0);
}

void WriteToStderr(absl::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

LoadProgress::LoadProgress(absl::string_view model, uint64_t total_bytes, Options options)
    : model_(model), total_bytes_(total_bytes), options_(std::move(options)) {
  if (options_.clock == nullptr) options_.clock = &system_clock_;
  if (!options_.draw) options_.draw = WriteToStderr;
  start_ = options_.clock->Now();
}

LoadProgress::~LoadProgress() {
  if (drawn_width_ > 0 && !finished_) options_.draw("\n");
}

absl::Status LoadProgress::Add(uint64_t bytes) {
  if (finished_) return absl::OkStatus();
  done_bytes_ += std::min(bytes, total_bytes_ - done_bytes_);
  const double ratio =
      total_bytes_ == 0 ? 0.0 : static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_);
  ratio_.store(ratio, std::memory_order_relaxed);
  const absl::Time now = options_.clock->Now();
  if (options_.terminal) {
    if (now - last_report_ >= kDrawInterval) Draw(now);
  } else if (now - std::max(last_report_, start_) >= kLogInterval) {
    LogLine(now);
  }
  if (stopped_ == nullptr || !stopped_()) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat("the loading of ", model_, " was stopped at ", Percent(ratio), " %"));
}

void LoadProgress::Finish() {
  if (finished_) return;
  done_bytes_ = total_bytes_;
  ratio_.store(1.0, std::memory_order_relaxed);
  const absl::Time now = options_.clock->Now();
  if (options_.terminal) {
    Draw(now);
    options_.draw("\n");
  } else {
    LogLine(now);
  }
  finished_ = true;
}

void LoadProgress::Draw(absl::Time now) {
  last_report_ = now;
  const int filled = static_cast<int>(ratio() * kBarWidth);
  std::string line = absl::StrFormat(
      "%s [%s%s] %3d%% %s of %s %s", model_, std::string(filled, '#'), std::string(kBarWidth - filled, '.'),
      Percent(ratio()), BytesText(done_bytes_), BytesText(total_bytes_), RateText(done_bytes_, now - start_));
  if (done_bytes_ < total_bytes_) {
    absl::StrAppend(&line, " ", LeftText(done_bytes_, total_bytes_, now - start_), " left");
  }
  const size_t width = line.size();
  // A shorter line must cover the whole of the one before.
  if (width < drawn_width_) line.append(drawn_width_ - width, ' ');
  drawn_width_ = width;
  options_.draw(absl::StrCat("\r", line));
}

void LoadProgress::LogLine(absl::Time now) {
  last_report_ = now;
  const int percent = Percent(ratio());
  const std::string rate = RateText(done_bytes_, now - start_);
  const std::string left = LeftText(done_bytes_, total_bytes_, now - start_);
  if (options_.log) {
    options_.log(absl::StrCat(model_, " ", percent, "% ", BytesText(done_bytes_), " of ",
                              BytesText(total_bytes_), " ", rate, ", left: ", left));
    return;
  }
  LogInfo("loading model", {{"model", model_},
                            {"percent", absl::StrCat(percent)},
                            {"done", BytesText(done_bytes_)},
                            {"total", BytesText(total_bytes_)},
                            {"rate", rate},
                            {"left", left}});
}

}  // namespace tandem
