#pragma once

#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/log.h"

namespace tandem {

// What Log writes, with its line feed.
std::string LogLine(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace tandem
