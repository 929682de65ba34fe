#include "common/base/log.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/log_line.h"
#include "common/base/log_queue.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};
std::atomic<LogFormat> log_format{LogFormat::kText};

absl::Mutex& ServiceMutex() {
  static auto* mutex = new absl::Mutex;
  return *mutex;
}
std::string& ServiceName() {
  static auto* name = new std::string;
  return *name;
}

absl::string_view Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

void AppendQuoted(absl::string_view text, std::string& out) {
  out.push_back('"');
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += absl::StrFormat("\\u%04x", byte);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

bool NeedsQuotes(absl::string_view text) {
  if (text.empty()) return true;
  for (char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '=' || c == '\x7f') return true;
  }
  return false;
}

std::string TextLine(LogLevel level, absl::string_view time, absl::string_view service,
                     absl::string_view event, std::initializer_list<LogField> fields) {
  std::string line = absl::StrCat(time, " ", Name(level), " ", service, service.empty() ? "" : ": ", event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=");
    if (NeedsQuotes(field.value)) {
      AppendQuoted(field.value, line);
    } else {
      line += field.value;
    }
  }
  return line;
}

std::string JsonLine(LogLevel level, absl::string_view time, absl::string_view service,
                     absl::string_view event, std::initializer_list<LogField> fields) {
  std::string line = absl::StrCat("{\"time\":\"", time, "\",\"level\":\"", Name(level), "\"");
  const auto append = [&line](absl::string_view key, absl::string_view value) {
    line.push_back(',');
    AppendQuoted(key, line);
    line.push_back(':');
    AppendQuoted(CleanUtf8(value), line);
  };
  if (!service.empty()) append("service", service);
  append("event", event);
  for (const LogField& field : fields) append(field.key, field.value);
  line.push_back('}');
  return line;
}

}  // namespace

void SetLogLevel(LogLevel minimum) {
  minimum_level = minimum;
}
void SetLogFormat(LogFormat format) {
  log_format = format;
}
void SetLogService(absl::string_view service) {
  absl::MutexLock lock(&ServiceMutex());
  ServiceName() = std::string(service);
}

bool LogEnabled(LogLevel level) {
  return level >= minimum_level;
}

std::string LogLine(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  std::string service;
  {
    absl::MutexLock lock(&ServiceMutex());
    service = ServiceName();
  }
  std::string line = log_format == LogFormat::kJson ? JsonLine(level, time, service, event, fields)
                                                    : TextLine(level, time, service, event, fields);
  line.push_back('\n');
  return line;
}

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  // One write per line, so that lines of several processes on one terminal do not mix.
  if (LogEnabled(level)) WriteLogLine(LogLine(level, event, fields));
}

}  // namespace tandem
