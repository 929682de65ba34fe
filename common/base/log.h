#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace tandem {

// Structured logging to stderr. A line is one event with named fields:
//
//   LogInfo("drafter connected", {{"endpoint", endpoint}, {"models", absl::StrCat(n)}});
//
// Text format: `2026-11-21T03:25:46.123Z info drafter connected endpoint=... models=4`; values with blanks
// are quoted. JSON format (`--log-format=json`): one object a line, in UTF-8 whatever the values are. Lines
// about a request have its `request_id` and `trace_id` (docs/operate/tracing.md). Prompts and outputs are
// never logged. Every function here is safe to call from any thread.

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

struct LogField {
  absl::string_view key;
  std::string value;
};

void SetLogLevel(LogLevel minimum);
void SetLogFormat(LogFormat format);
// Put in front of every line, such as "verifier".
void SetLogService(absl::string_view service);

// Whether lines of this level are written: to spare the making of their fields.
bool LogEnabled(LogLevel level);

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

inline void LogDebug(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kDebug, event, fields);
}
inline void LogInfo(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(absl::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, event, fields);
}

}  // namespace tandem
