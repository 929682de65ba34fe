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

// Characters that Unicode assigned after the version that PCRE2 10.42 knows (14), up to that of the Oniguruma
// in Hugging Face's `tokenizers` (16). Each candidate is an older character that is as long in UTF-8 and has
// the same category and case. Of the same script are those among the first kNumOfScript, but for scripts that
// are newer too or among ScriptsWithNewerCharacters.
struct StandIn {
  static constexpr size_t kNumOfScript = 4;
  uint32_t first;
  uint32_t last;
  std::array<uint32_t, 8> candidates;
};
// By first character, without overlap.
absl::Span<const StandIn> StandIns();

// Scripts that their stand-ins do not tell apart from others, by names as NormalizePropertyName gives them.
absl::Span<const absl::string_view> ScriptsWithNewerCharacters();

// Characters younger than the tables by which `tokenizers` normalizes: they stay as they are, where they are.
bool HasNoNormalForm(uint32_t code_point);

// Characters younger than utf8proc's tables that are part of words, or numeric, in `tokenizers`.
bool IsNewerWordCharacter(uint32_t code_point);
bool IsNewerNumeric(uint32_t code_point);
// The lower case of such a character.
std::optional<uint32_t> FindNewerLowercase(uint32_t code_point);

// What the pre-tokenizer Punctuation cuts at: ASCII's, and what was punctuation in Unicode 8.
bool IsPunctuation(uint32_t code_point);

// A number for the script that the pre-tokenizer UnicodeScripts sees in a character; kana count as Han.
// Characters of kAnyWritingSystem, the space and unassigned ones, go with any script.
inline constexpr int kAnyWritingSystem = 0;
int WritingSystem(uint32_t code_point);

}  // namespace tandem
