#include "common/tokenizer/character_set.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr absl::string_view kAnyCharacter = "[\\x{0}-\\x{10FFFF}]";

std::string ClassOf(absl::string_view members, bool negated) {
  if (members.empty()) return negated ? std::string(kAnyCharacter) : "(?!)";
  return absl::StrCat(negated ? "[^" : "[", members, "]");
}

std::string TestOf(const CharacterSet& set);

// A look-ahead that succeeds before a character of the union. It is atomic: if several members match, that is
// not another way to match.
std::string TestOf(const CharacterSet::Union& set) {
  if (set.nested.empty()) return absl::StrCat("(?=", ClassOf(set.members, false), ")");
  if (set.members.empty() && set.nested.size() == 1) return TestOf(set.nested[0]);
  std::string test = "(?>";
  if (!set.members.empty()) absl::StrAppend(&test, TestOf({set.members, {}}), "|");
  for (size_t i = 0; i < set.nested.size(); ++i)
    absl::StrAppend(&test, i > 0 ? "|" : "", TestOf(set.nested[i]));
  return absl::StrCat(test, ")");
}

std::string TestOf(const CharacterSet& set) {
  if (set.negated && set.is_simple())
    return absl::StrCat("(?!", ClassOf(set.operands[0].members, false), ")");
  std::string test;
  for (const CharacterSet::Union& operand : set.operands) absl::StrAppend(&test, TestOf(operand));
  return set.negated ? absl::StrCat("(?!", test, ")") : test;
}

struct Property {
  absl::string_view name;
  absl::string_view members;
};

// The general categories, by their short and long names.
constexpr Property kCategories[] = {
    {"l", "\\p{L}"},
    {"letter", "\\p{L}"},
    {"lu", "\\p{Lu}"},
    {"uppercaseletter", "\\p{Lu}"},
    {"ll", "\\p{Ll}"},
    {"lowercaseletter", "\\p{Ll}"},
    {"lt", "\\p{Lt}"},
    {"titlecaseletter", "\\p{Lt}"},
    {"lc", "\\p{L&}"},
    {"casedletter", "\\p{L&}"},
    {"lm", "\\p{Lm}"},
    {"modifierletter", "\\p{Lm}"},
    {"lo", "\\p{Lo}"},
    {"otherletter", "\\p{Lo}"},
    {"m", "\\p{M}"},
    {"mark", "\\p{M}"},
    {"combiningmark", "\\p{M}"},
    {"mn", "\\p{Mn}"},
    {"nonspacingmark", "\\p{Mn}"},
    {"mc", "\\p{Mc}"},
    {"spacingmark", "\\p{Mc}"},
    {"me", "\\p{Me}"},
    {"enclosingmark", "\\p{Me}"},
    {"n", "\\p{N}"},
    {"number", "\\p{N}"},
    {"nd", "\\p{Nd}"},
    {"decimalnumber", "\\p{Nd}"},
    {"nl", "\\p{Nl}"},
    {"letternumber", "\\p{Nl}"},
    {"no", "\\p{No}"},
    {"othernumber", "\\p{No}"},
    {"p", "\\p{P}"},
    {"punctuation", "\\p{P}"},
    {"pc", "\\p{Pc}"},
    {"connectorpunctuation", "\\p{Pc}"},
    {"pd", "\\p{Pd}"},
    {"dashpunctuation", "\\p{Pd}"},
    {"ps", "\\p{Ps}"},
    {"openpunctuation", "\\p{Ps}"},
    {"pe", "\\p{Pe}"},
    {"closepunctuation", "\\p{Pe}"},
    {"pi", "\\p{Pi}"},
    {"initialpunctuation", "\\p{Pi}"},
    {"pf", "\\p{Pf}"},
    {"finalpunctuation", "\\p{Pf}"},
    {"po", "\\p{Po}"},
    {"otherpunctuation", "\\p{Po}"},
    {"s", "\\p{S}"},
    {"symbol", "\\p{S}"},
    {"sm", "\\p{Sm}"},
    {"mathsymbol", "\\p{Sm}"},
    {"sc", "\\p{Sc}"},
    {"currencysymbol", "\\p{Sc}"},
    {"sk", "\\p{Sk}"},
    {"modifiersymbol", "\\p{Sk}"},
    {"so", "\\p{So}"},
    {"othersymbol", "\\p{So}"},
    {"z", "\\p{Z}"},
    {"separator", "\\p{Z}"},
    {"zs", "\\p{Zs}"},
    {"spaceseparator", "\\p{Zs}"},
    {"zl", "\\p{Zl}"},
    {"lineseparator", "\\p{Zl}"},
    {"zp", "\\p{Zp}"},
    {"paragraphseparator", "\\p{Zp}"},
    {"c", "\\p{C}"},
    {"other", "\\p{C}"},
    {"cc", "\\p{Cc}"},
    {"control", "\\p{Cc}"},
    {"cf", "\\p{Cf}"},
    {"format", "\\p{Cf}"},
    {"co", "\\p{Co}"},
    {"privateuse", "\\p{Co}"},
    {"cn", "\\p{Cn}"},
    {"unassigned", "\\p{Cn}"},
    {"any", "\\x{0}-\\x{10FFFF}"},
};

// Alphabetic and Lowercase contain characters, since Unicode 16, that were assigned earlier without these
// properties.
#define TANDEM_ALPHABETIC \
  "\\p{Alphabetic}\\x{363}-\\x{36F}\\x{C04}\\x{F82}-\\x{F83}\\x{1DD3}-\\x{1DE6}\\x{11080}-\\x{11081}"
#define TANDEM_LOWERCASE "\\p{Lowercase}\\x{10FC}\\x{A7F2}-\\x{A7F4}\\x{AB69}"
#define TANDEM_VISIBLE "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"
#define TANDEM_WORD                                                                                \
  "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}" \
  "\\x{1F170}-\\x{1F189}"

// The POSIX classes, as Oniguruma derives them from Unicode.
constexpr Property kPosixClasses[] = {
    {"alnum", TANDEM_ALPHABETIC "\\p{Nd}"},
    {"alpha", TANDEM_ALPHABETIC},
    {"alphabetic", TANDEM_ALPHABETIC},
    {"ascii", "\\x{0}-\\x{7F}"},
    {"blank", "\\p{Zs}\\x{9}"},
    {"cntrl", "\\p{Cc}"},
    {"digit", "\\p{Nd}"},
    {"graph", TANDEM_VISIBLE},
    {"lower", TANDEM_LOWERCASE},
    {"lowercase", TANDEM_LOWERCASE},
    {"print", TANDEM_VISIBLE "\\p{Zs}"},
    {"punct", "\\p{P}"},
    {"space", kWhiteSpaceMembers},
    {"whitespace", kWhiteSpaceMembers},
    {"upper", "\\p{Uppercase}"},
    {"uppercase", "\\p{Uppercase}"},
    {"xdigit", "0-9A-Fa-f"},
    {"word", TANDEM_WORD},
};

}  // namespace

const absl::string_view kWordMembers = TANDEM_WORD;
const absl::string_view kLoneWordMembers = TANDEM_WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
const absl::string_view kNoWhiteSpaceMembers =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-"
    "\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}";

CharacterSet CharacterSet::Of(absl::string_view members, bool negated) {
  return {{Union{std::string(members), {}}}, negated};
}

void AddToUnion(CharacterSet set, CharacterSet::Union& to) {
  if (set.negated || set.operands.size() != 1) {
    to.nested.push_back(std::move(set));
    return;
  }
  absl::StrAppend(&to.members, set.operands[0].members);
  for (CharacterSet& nested : set.operands[0].nested) to.nested.push_back(std::move(nested));
}

std::string PatternOf(const CharacterSet& set) {
  if (set.is_simple()) return ClassOf(set.operands[0].members, set.negated);
  // One operand, which must be a class, consumes the character. Look-aheads in front of it test the others.
  std::string tests;
  std::string taken;
  if (!set.negated) {
    for (const CharacterSet::Union& operand : set.operands) {
      if (taken.empty() && operand.nested.empty()) {
        taken = ClassOf(operand.members, false);
      } else {
        absl::StrAppend(&tests, TestOf(operand));
      }
    }
  } else {
    tests = TestOf(set);
  }
  return absl::StrCat("(?:", tests, taken.empty() ? kAnyCharacter : taken, ")");
}

std::optional<CharacterSet> FindPropertySet(absl::string_view name, bool in_brackets) {
  // The POSIX class contains symbols, the property of the same name does not.
  if (in_brackets && name == "punct") return CharacterSet::Of("\\p{P}\\p{S}");
  if (!in_brackets && name == "word") return CharacterSet::Of(kLoneWordMembers);
  if (!in_brackets && name == "assigned") return CharacterSet::Of("\\P{Cn}");
  for (const Property& property : kPosixClasses) {
    if (property.name == name) return CharacterSet::Of(property.members);
  }
  if (in_brackets) return std::nullopt;
  for (const Property& property : kCategories) {
    if (property.name == name) return CharacterSet::Of(property.members);
  }
  return std::nullopt;
}

std::string NormalizePropertyName(absl::string_view name) {
  std::string normalized;
  for (char c : name) {
    if (c != ' ' && c != '-' && c != '_')
      normalized.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
  }
  return normalized;
}

bool IsCasedProperty(absl::string_view name) {
  for (absl::string_view cased :
       {"lu", "ll", "lt", "lc", "uppercaseletter", "lowercaseletter", "titlecaseletter", "casedletter",
        "lower", "lowercase", "upper", "uppercase"}) {
    if (name == cased) return true;
  }
  return false;
}

}  // namespace tandem
