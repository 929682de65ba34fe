#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/unicode/unicode_tables.h"

namespace tandem {

// A pattern in PCRE2's syntax (for UTF, UCP and MULTILINE), and the characters that it names one by one or as
// ranges, beside those that it names by their properties; and whether a script is among
// these.
struct TranslatedPattern {
  std::string pattern;
  std::vector<CodePointRange> named;
  bool names_script = false;
};

// Rewrites a pattern of Oniguruma's Ruby syntax, in which tokenizer files are written, so that PCRE2 matches
// the same. InvalidArgument for a malformed pattern; Unimplemented, with its name, for a construct that is
// not translated: back references, subexpression calls, raw bytes, the option x, and others for which PCRE2
// has no equivalent class or look-around.
//
// A set of characters that PCRE2's classes cannot hold, such as an intersection, becomes look-aheads before
// one character.
absl::StatusOr<TranslatedPattern> TranslatePattern(absl::string_view oniguruma_pattern);

}  // namespace tandem
