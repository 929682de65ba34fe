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

// Parses a JSON text that somebody else wrote. Stricter than the grammar: a key that stands twice in one
// object is refused, since readers disagree on which of the two counts, and depth and number of values are
// bounded.
//
// Errors are InvalidArgument: "PATH: byte OFFSET: what was found and what was expected". `path` and
// `first_byte` (where `text` starts in that file) are used in messages only.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view path,
                                               size_t first_byte = 0, const JsonLimits& limits = {});

// Text and values from outside as they may stand in a message: shortened when long, unprintable bytes
// replaced.
std::string PrintableText(absl::string_view text);
std::string PrintableValue(const nlohmann::json& value);

}  // namespace tandem
