#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/compiled.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {

// A constraint made up from an input, and what is known of its texts by other means than the compiler's.
struct ConstraintCase {
  ConstraintSource source;
  // Whether a text is one of its texts.
  std::function<bool(absl::string_view text)> matches;
  // Whether it has any; nullopt: not known.
  std::optional<bool> has_texts;
  std::vector<std::string> texts;  // Some of them.
};

// Each reads as much of the input as it needs.
ConstraintCase MakeChoicesCase(InputReader& reader);
ConstraintCase MakeGrammarCase(InputReader& reader);
ConstraintCase MakeRegexCase(InputReader& reader);
ConstraintCase MakeSchemaCase(InputReader& reader);

// Tries one, which its first byte chooses the form of. Whether it was taken for a constraint; Internal says
// what is wrong with it, or with what was generated under it.
absl::StatusOr<bool> TryConstraint(absl::string_view input);

// A character of those that texts, patterns and grammars have trouble with, as UTF-8.
std::string MakeCharacter(InputReader& reader);

// Whether PCRE2 finds a pattern in the text or, if `whole`, takes all of it for one match.
bool PatternMatches(absl::string_view pattern, absl::string_view text, bool whole);

}  // namespace tandem::fuzz
