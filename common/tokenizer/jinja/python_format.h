#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_builtins.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

// Python's ways to put values into a text. InvalidArgument for what Python refuses as well.

// `format % values`: a tuple gives its items, a dict those that `%(name)s` names, anything else is one value.
absl::StatusOr<std::string> PythonPercentFormat(absl::string_view format, const JinjaValue& values,
                                                JinjaBudget& budget);

// `format.format(...)`.
absl::StatusOr<std::string> PythonBraceFormat(absl::string_view format, const JinjaArguments& arguments,
                                              JinjaBudget& budget);

// Characters on both sides up to a width, as str.center, ljust and rjust do. `fill` is one character.
enum class TextAlignment { kLeft, kCenter, kRight };
absl::StatusOr<std::string> PythonPad(absl::string_view text, int64_t width, absl::string_view fill,
                                      TextAlignment alignment, JinjaBudget& budget);

// Python's ascii(): the text, with escapes for all that is not ASCII.
std::string PythonAscii(absl::string_view text);

}  // namespace tandem
