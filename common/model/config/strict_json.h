#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Bounds on what a JSON text may make us build.
struct JsonLimits {
  size_t max_depth = 32;
  size_t max_values = 4'000'000;
};

// Parses a JSON text from outside. Stricter than the grammar: refuses a key that occurs twice in one object,
// because readers disagree on which one counts, and bounds depth and number of values.
//
// Errors are InvalidArgument: "PATH: byte OFFSET: what was found and what was expected" for what is no JSON,
// and "PATH: PLACE: ..." for JSON that is refused, with the value's place such as "layers[0].name". `path`
// and `first_byte` (where `text` starts in that file) are only used in messages.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view path,
                                               size_t first_byte = 0, const JsonLimits& limits = {});

// Text and values from outside in a form for messages: shortened if long, unprintable bytes replaced.
std::string PrintableText(absl::string_view text);
std::string PrintableValue(const nlohmann::json& value);

}  // namespace tandem
