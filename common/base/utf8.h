#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// `text` as well-formed UTF-8 of at most `max_bytes` bytes: every byte that belongs to no character (overlong
// forms, surrogates and values above U+10FFFF are none) is replaced by U+FFFD, and what does not fit is cut
// off between characters.
std::string CleanUtf8(absl::string_view text, size_t max_bytes = absl::string_view::npos);

}  // namespace tandem
