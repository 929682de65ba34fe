#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace tandem {

// The pattern of a `format` of JSON Schema, for Pattern; nullopt for those that no pattern says exactly and
// for names that are no format.
std::optional<absl::string_view> PatternOfFormat(absl::string_view name);
// Formats of OpenAPI and others that say nothing of the text itself: "password".
bool SaysNothing(absl::string_view format);
// For messages.
absl::string_view KnownFormats();

}  // namespace tandem
