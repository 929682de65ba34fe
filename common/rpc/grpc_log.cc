#include "common/rpc/grpc_log.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "grpcpp/version_info.h"

// Later versions, and the versions of protobuf that they are built with, log through Abseil.
#define TANDEM_GRPC_HAS_ITS_OWN_LOG (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65)

#if TANDEM_GRPC_HAS_ITS_OWN_LOG
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#else
#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/match.h"
#endif

namespace tandem {
namespace {

constexpr uint64_t kLinesPerSecond = 10;

// Whether another line may be written now. `left_out` is how many were not since the last one that was.
bool MayLog(uint64_t* left_out) {
  static std::atomic<int64_t> second{0};
  static std::atomic<uint64_t> in_second{0};
  static std::atomic<uint64_t> left_out_since{0};
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  // Two threads that begin a second together may write some more lines, which does no harm.
  if (second.exchange(now, std::memory_order_relaxed) != now) in_second.store(0, std::memory_order_relaxed);
  if (in_second.fetch_add(1, std::memory_order_relaxed) >= kLinesPerSecond) {
    left_out_since.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  *left_out = left_out_since.exchange(0, std::memory_order_relaxed);
  return true;
}

void WriteLine(LogLevel level, absl::string_view who, absl::string_view message, absl::string_view path,
               int line) {
  uint64_t left_out = 0;
  if (!LogEnabled(level) || !MayLog(&left_out)) return;
  Log(level, who,
      {{"message", std::string(message.data(), message.size())},
       {"at", absl::StrCat(path.substr(path.rfind('/') + 1), ":", line)},
       {"left_out", absl::StrCat(left_out)}});
}

#if TANDEM_GRPC_HAS_ITS_OWN_LOG
void OnLine(gpr_log_func_args* line) {
  const LogLevel level = line->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  WriteLine(level, "grpc", line->message, line->file, line->line);
}

// Protobuf says on standard error, for every message of a peer that it cannot parse, why.
void OnProtobufLine(google::protobuf::LogLevel severity, const char* file, int line,
                    const std::string& message) {
  const bool serious = severity >= google::protobuf::LOGLEVEL_ERROR;
  WriteLine(serious ? LogLevel::kWarning : LogLevel::kDebug, "protobuf", message, file, line);
}

#else
class GrpcLogSink final : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override {
    const bool serious = entry.log_severity() >= absl::LogSeverity::kError;
    const absl::string_view path = entry.source_filename();
    WriteLine(serious ? LogLevel::kWarning : LogLevel::kDebug,
              absl::StrContains(path, "google/protobuf") ? "protobuf" : "grpc", entry.text_message(), path,
              entry.source_line());
  }
};
#endif

void Take() {
#if TANDEM_GRPC_HAS_ITS_OWN_LOG
  gpr_set_log_function(OnLine);
  google::protobuf::SetLogHandler(OnProtobufLine);
#else
  // Before it is initialized, Abseil writes every line to standard error itself. After that, only the last
  // words of a process that one of its checks ends, with the stack.
  absl::InitializeLog();
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kFatal);
  static auto* const sink = new GrpcLogSink();
  absl::AddLogSink(sink);
#endif
}

}  // namespace

void TakeGrpcLog() {
  static std::once_flag taken;
  std::call_once(taken, Take);
}

}  // namespace tandem
