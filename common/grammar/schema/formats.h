#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace tandem {

// The pattern of a `format`, for Pattern; nullopt for those that no pattern says exactly and for names that
// are no format of texts.
std::optional<absl::string_view> PatternOfFormat(absl::string_view name);
// Whether JSON Schema defines such a format. Other names, such as OpenAPI's "int64", are annotations.
bool IsStandardFormat(absl::string_view name);
// Those that have a pattern, for messages.
absl::string_view KnownFormats();

}  // namespace tandem
