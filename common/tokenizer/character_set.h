#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// A set of characters in a regular expression, as Oniguruma's classes compose it: an intersection of unions,
// or the complement of one.
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

// The PCRE2 pattern that matches one character of the set.
std::string PatternOf(const CharacterSet& set);

// White space, and everything else, as in Oniguruma's \s. PCRE2's also contains U+180E, which is not white
// space since Unicode 6.3.
inline constexpr absl::string_view kWhiteSpaceMembers = "\\p{Z}\\x{09}-\\x{0D}\\x{85}";
extern const absl::string_view kNoWhiteSpaceMembers;
// Oniguruma's \w contains alphabetic characters (circled and squared letters included), marks, decimal digits
// and connectors. PCRE2's contains all numbers, but no marks.
extern const absl::string_view kWordMembers;
// Outside a character class, it also contains the superscripts and fractions of Latin-1.
extern const absl::string_view kLoneWordMembers;

// The set that \p{name} or, `in_brackets`, [:name:] means. nullopt for names that are no category and no
// POSIX class, and for scripts. `name`: from NormalizePropertyName.
std::optional<CharacterSet> FindPropertySet(absl::string_view name, bool in_brackets);

// Lower case, without blanks, hyphens and underscores: names that differ only in these are the same.
std::string NormalizePropertyName(absl::string_view name);

// Whether a set of this name tells upper from lower case.
bool IsCasedProperty(absl::string_view name);

}  // namespace tandem
