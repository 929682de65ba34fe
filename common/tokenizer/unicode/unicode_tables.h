#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem {

// Both bounds included.
struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

// Characters that Unicode assigned after version 14, which PCRE2 10.42 knows, up to version 16, which the
// Oniguruma in Hugging Face's `tokenizers` knows. Each candidate is an older character of the same length in
// UTF-8, with the same category and case. The first kNumOfScript candidates also have the same script, unless
// the script is newer too or in ScriptsWithNewerCharacters.
struct StandIn {
  static constexpr size_t kNumOfScript = 4;
  uint32_t first;
  uint32_t last;
  std::array<uint32_t, 8> candidates;
};
// By first character, without overlap.
absl::Span<const StandIn> StandIns();

// Scripts whose characters cannot be told from others by their stand-ins. Names as from
// NormalizePropertyName.
absl::Span<const absl::string_view> ScriptsWithNewerCharacters();

// Characters that are newer than the tables by which `tokenizers` normalizes: they stay unchanged in place.
bool HasNoNormalForm(uint32_t code_point);

// Characters that are newer than utf8proc's tables and that `tokenizers` treats as parts of words, or as
// numeric.
bool IsNewerWordCharacter(uint32_t code_point);
bool IsNewerNumeric(uint32_t code_point);
// The lower case of such a character.
std::optional<uint32_t> FindNewerLowercase(uint32_t code_point);

// Where the pre-tokenizer Punctuation cuts: ASCII's punctuation, and that of Unicode 8.
bool IsPunctuation(uint32_t code_point);

// The number of the script that the pre-tokenizer UnicodeScripts assigns to a character; kana count as Han.
// Characters of kAnyWritingSystem, which are the space and unassigned ones, go with any script.
inline constexpr int kAnyWritingSystem = 0;
int WritingSystem(uint32_t code_point);

}  // namespace tandem
