#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// A set of characters of a regular expression, as Oniguruma's classes compose them: the intersection of
// unions, or what is outside of it.
struct CharacterSet {
  struct Union {
    std::string members;  // what stands between the brackets of a PCRE2 class
    std::vector<CharacterSet> nested;
  };
  std::vector<Union> operands;
  bool negated = false;

  static CharacterSet Of(absl::string_view members, bool negated = false);
  // One PCRE2 class holds it.
  bool is_simple() const { return operands.size() == 1 && operands[0].nested.empty(); }
};

// Adds a set to a union.
void AddToUnion(CharacterSet set, CharacterSet::Union& to);

// The PCRE2 pattern that takes one character of the set.
std::string PatternOf(const CharacterSet& set);

// White space, and everything else, as Oniguruma's \s. PCRE2's also takes U+180E, which is none since
// Unicode 6.3.
inline constexpr absl::string_view kWhiteSpaceMembers = "\\p{Z}\\x{09}-\\x{0D}\\x{85}";
extern const absl::string_view kNoWhiteSpaceMembers;
// Oniguruma's \w is alphabetic characters (circled and squared letters among them), marks, decimal digits and
// connectors; PCRE2's takes all numbers, but no marks.
extern const absl::string_view kWordMembers;
// Outside a character class, and only there, it also takes the superscripts and fractions of Latin-1.
extern const absl::string_view kLoneWordMembers;

// The set that \p{name} or, `in_brackets`, [:name:] means. Nothing for names of no category and no POSIX
// class, and for scripts. `name` as NormalizePropertyName gives it.
std::optional<CharacterSet> FindPropertySet(absl::string_view name, bool in_brackets);

// Lower case, without blanks, hyphens and underscores: names that differ in these only are the same.
std::string NormalizePropertyName(absl::string_view name);

// Whether a set of this name tells upper from lower case.
bool IsCasedProperty(absl::string_view name);

}  // namespace tandem
