#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

// The value of a JSON text that JsonView takes, in a time that grows with the text alone. Members keep their
// order. Whole numbers that do not fit 64 bits with a sign are floats. `on_text`, unless it is null, makes
// each text and name what the template sees.
absl::StatusOr<JinjaValue> JinjaFromJson(absl::string_view json,
                                         const std::function<std::string(std::string)>& on_text);

}  // namespace tandem
