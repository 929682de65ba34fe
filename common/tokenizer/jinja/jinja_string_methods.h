#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_builtins.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

// Python's methods of str. All of them but encode, maketrans and translate.
bool HasPythonStringMethod(absl::string_view name);

// `text.name(arguments)`; `name` must be one of them.
absl::StatusOr<JinjaValue> CallPythonStringMethod(const std::string& text, absl::string_view name,
                                                  const JinjaArguments& arguments, JinjaBudget& budget);

}  // namespace tandem
