#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// `text` as well-formed UTF-8 of at most `max_bytes` bytes: replaces every byte that belongs to no character
// (also overlong forms, surrogates and values above U+10FFFF) by U+FFFD, and cuts the text between characters
// if it is too long.
std::string CleanUtf8(absl::string_view text, size_t max_bytes = absl::string_view::npos);

// Takes the first character off a text that is not empty. A byte that belongs to no character gives U+FFFD.
uint32_t TakeCodePoint(absl::string_view* text);
// `code_point`: no surrogate, at most U+10FFFF.
void AppendCodePoint(uint32_t code_point, std::string* text);

}  // namespace tandem
