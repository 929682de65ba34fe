#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The beginning of a byte string that should be UTF-8.
struct Utf8Unit {
  enum class Kind {
    kCharacter,   // `length` bytes form one well-formed character
    kInvalid,     // `length` bytes can never become one: a maximal subpart, replaced by one U+FFFD
    kIncomplete,  // all `length` bytes that are there begin a character, whose end is still missing
  };
  Kind kind;
  size_t length;
  uint32_t code_point;  // for kCharacter
};

// `bytes` must not be empty. Surrogates, overlong forms and values beyond U+10FFFF are invalid.
Utf8Unit ReadUtf8(absl::string_view bytes);

// The offset of the first byte that is not part of well-formed UTF-8; nullopt if there is none.
std::optional<size_t> FindInvalidUtf8(absl::string_view bytes);

void AppendUtf8(uint32_t code_point, std::string& out);

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The Unicode property White_Space.
bool IsWhiteSpace(uint32_t code_point);
// General category N: decimal digits, letter numbers and other numbers.
bool IsNumeric(uint32_t code_point);
// What `\w` means in Unicode regular expressions (UTS #18, annex C).
bool IsWordCharacter(uint32_t code_point);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` must be well-formed UTF-8. The tables are those of the Hugging Face library: characters that are
// newer than the tables stay unchanged. Linear, except for the sorting of runs of combining marks, which is
// O(n log n). utf8proc's own reordering is quadratic, and so not used.
absl::StatusOr<std::string> NormalizeUnicode(absl::string_view text, NormalizationForm form);

// Lower case, one character at a time, without context.
std::string LowercaseUnicode(absl::string_view text);

}  // namespace tandem
