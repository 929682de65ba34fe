#include "common/tokenizer/regex_translator.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/character_set.h"
#include "common/tokenizer/unicode/unicode.h"
#include "common/tokenizer/unicode/unicode_tables.h"

namespace tandem {
namespace {

constexpr int kMaxNesting = 64;
constexpr uint32_t kMaxRepeats = 65535;  // PCRE2's
constexpr size_t kNoAtom = std::string::npos;

absl::Status Unsupported(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("regular expression uses ", what, ", which is not supported"));
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed regular expression: ", what));
}

std::string Escaped(uint32_t code_point) {
  return absl::StrCat("\\x{", absl::Hex(code_point), "}");
}

// A character of a pattern, or a set of them.
using Member = std::variant<uint32_t, CharacterSet>;

class PatternTranslator {
 public:
  explicit PatternTranslator(absl::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<TranslatedPattern> Translate() {
    while (!rest_.empty()) TANDEM_RETURN_IF_ERROR(TranslateNext());
    if (!groups_.empty()) return Malformed("missing closing parenthesis");
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin;   // the group's place in the output
    bool caseless;  // restored after the group
  };

  absl::Status TranslateNext() {
    switch (rest_[0]) {
      case '\\':
        return TranslateEscape();
      case '[': {
        rest_.remove_prefix(1);
        TANDEM_ASSIGN_OR_RETURN(const CharacterSet set, ParseClass(0));
        EmitAtom(PatternOf(set));
        return absl::OkStatus();
      }
      case '(':
        return OpenGroup();
      case ')':
        return CloseGroup();
      case '|':
        EmitNoAtom("|");
        rest_.remove_prefix(1);
        return absl::OkStatus();
      case '^':
      case '$':
        EmitNoAtom(rest_.substr(0, 1));
        rest_.remove_prefix(1);
        return absl::OkStatus();
      case '.':
        EmitAtom(".");
        rest_.remove_prefix(1);
        return absl::OkStatus();
      case '*':
      case '+':
      case '?':
        return TranslateQuantifier();
      case '{': {
        TANDEM_ASSIGN_OR_RETURN(const bool is_interval, TranslateInterval());
        return is_interval ? absl::OkStatus() : TranslateLiteral();
      }
      default:
        return TranslateLiteral();
    }
  }

  void EmitAtom(absl::string_view pattern) {
    atom_ = out_.pattern.size();
    is_quantified_ = false;
    begins_group_ = false;
    previous_literal_ = 0;
    absl::StrAppend(&out_.pattern, pattern);
  }
  // Emits a part that cannot be repeated.
  void EmitNoAtom(absl::string_view pattern) {
    EmitAtom(pattern);
    atom_ = kNoAtom;
  }

  uint32_t TakeCodePoint() {
    const Utf8Unit unit = ReadUtf8(rest_);
    rest_.remove_prefix(unit.length);
    return unit.code_point;
  }

  absl::Status TranslateLiteral() { return EmitLiteral(TakeCodePoint()); }

  // Oniguruma treats some pairs of letters, in any case, as one letter: "ss" as U+00DF. PCRE2 does not.
  absl::Status EmitLiteral(uint32_t code_point) {
    const uint32_t previous = previous_literal_;
    EmitAtom(Escaped(code_point));
    out_.named.push_back({code_point, code_point});
    if (!caseless_) return absl::OkStatus();
    const auto lower = [](uint32_t c) {
      return c < 0x80 ? absl::ascii_tolower(static_cast<unsigned char>(c)) : c;
    };
    const uint32_t first = lower(previous);
    const uint32_t second = lower(code_point);
    const bool ligature = (first == 'f' && (second == 'f' || second == 'i' || second == 'l')) ||
                          (first == 's' && (second == 's' || second == 't'));
    if (ligature || code_point == 0xDF || code_point == 0x1E9E) {
      return Unsupported("letters without regard to case that are one letter together (ss, st, ff, fi, fl)");
    }
    previous_literal_ = code_point;
    return absl::OkStatus();
  }

  absl::Status OpenGroup() {
    if (groups_.size() >= kMaxNesting) return Unsupported("groups nested deeper than 64");
    const size_t begin = out_.pattern.size();
    if (absl::StartsWith(rest_, "(*")) return Unsupported("'(*'");
    for (absl::string_view look : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (absl::StartsWith(rest_, look)) return PushGroup(begin, look, look.size());
    }
    if (absl::StartsWith(rest_, "(?#")) {
      const size_t close = rest_.find(')');
      if (close == absl::string_view::npos) return Malformed("a comment without end");
      rest_.remove_prefix(close + 1);
      return absl::OkStatus();
    }
    if (absl::StartsWith(rest_, "(?<") || absl::StartsWith(rest_, "(?'")) {
      const size_t close = rest_.find(rest_[2] == '<' ? '>' : '\'', 3);
      if (close == absl::string_view::npos) return Malformed("a group's name without end");
      return PushGroup(begin, "(?:", close + 1);
    }
    if (absl::StartsWith(rest_, "(?")) return TranslateOptions(begin);
    return PushGroup(begin, "(?:", 1);
  }

  absl::Status PushGroup(size_t begin, absl::string_view opening, size_t taken) {
    EmitNoAtom(opening);
    rest_.remove_prefix(taken);
    groups_.push_back({begin, caseless_});
    begins_group_ = true;
    return absl::OkStatus();
  }

  // (?i), (?i:, (?m-i: and so on. Ruby's m is PCRE2's s.
  absl::Status TranslateOptions(size_t begin) {
    std::string opening = "(?";
    bool caseless = caseless_;
    bool on = true;
    size_t at = 2;
    for (; at < rest_.size() && rest_[at] != ')' && rest_[at] != ':'; ++at) {
      const char option = rest_[at];
      if (option == '-') {
        on = false;
      } else if (option == 'i') {
        caseless = on;
      } else if (option == 'x') {
        return Unsupported("the option x");
      } else if (option != 'm') {
        return Unsupported(absl::StrCat("'(?", rest_.substr(2, at - 1), "'"));
      }
      opening.push_back(option == 'm' ? 's' : option);
    }
    if (at >= rest_.size()) return Malformed("options without end");
    opening.push_back(rest_[at]);
    if (rest_[at] == ':') {
      TANDEM_RETURN_IF_ERROR(PushGroup(begin, opening, at + 1));
      caseless_ = caseless;
      return absl::OkStatus();
    }
    // Ruby puts everything that follows into a group, including further alternatives; PCRE2 does not.
    if (!begins_group_) return Unsupported("options in the middle of a group");
    EmitNoAtom(opening);
    rest_.remove_prefix(at + 1);
    caseless_ = caseless;
    begins_group_ = true;
    return absl::OkStatus();
  }

  absl::Status CloseGroup() {
    if (groups_.empty()) return Malformed("unmatched closing parenthesis");
    EmitNoAtom(")");
    rest_.remove_prefix(1);
    atom_ = groups_.back().begin;
    caseless_ = groups_.back().caseless;
    groups_.pop_back();
    return absl::OkStatus();
  }

  // Begins a quantifier. If the atom already has one, wraps it in a group: PCRE2 would read "{2}+" and "{2}?"
  // as one quantifier.
  absl::Status BeginQuantifier() {
    if (atom_ == kNoAtom) return Malformed("nothing precedes a quantifier");
    if (is_quantified_) {
      out_.pattern.insert(atom_, "(?:");
      out_.pattern.push_back(')');
    }
    is_quantified_ = true;
    previous_literal_ = 0;
    return absl::OkStatus();
  }

  absl::Status TranslateQuantifier() {
    TANDEM_RETURN_IF_ERROR(BeginQuantifier());
    const size_t length = rest_.size() > 1 && (rest_[1] == '?' || rest_[1] == '+') ? 2 : 1;
    absl::StrAppend(&out_.pattern, rest_.substr(0, length));
    rest_.remove_prefix(length);
    return absl::OkStatus();
  }

  // {n}, {n,}, {,m} or {n,m}, the last three possibly followed by '?'; false for any other brace.
  absl::StatusOr<bool> TranslateInterval() {
    const size_t close = rest_.find('}');
    if (close == absl::string_view::npos) return false;
    const absl::string_view body = rest_.substr(1, close - 1);
    const size_t comma = body.find(',');
    const absl::string_view low_text = body.substr(0, comma);
    const absl::string_view high_text = comma == absl::string_view::npos ? low_text : body.substr(comma + 1);
    const auto is_number = [](absl::string_view text) {
      return std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
    };
    if (!is_number(low_text) || !is_number(high_text) || (low_text.empty() && high_text.empty()))
      return false;
    uint32_t low = 0;
    uint32_t high = kMaxRepeats;
    const bool fits = (low_text.empty() || absl::SimpleAtoi(low_text, &low)) &&
                      (high_text.empty() || absl::SimpleAtoi(high_text, &high));
    if (!fits || low > kMaxRepeats || high > kMaxRepeats) return Unsupported("an interval beyond 65535");
    if (low > high) return Unsupported("an interval whose bounds fall");
    TANDEM_RETURN_IF_ERROR(BeginQuantifier());
    absl::StrAppend(&out_.pattern, "{", low);
    if (comma != absl::string_view::npos) absl::StrAppend(&out_.pattern, ",", high_text);
    out_.pattern.push_back('}');
    rest_.remove_prefix(close + 1);
    if (comma != absl::string_view::npos && absl::StartsWith(rest_, "?")) {
      out_.pattern.push_back('?');
      rest_.remove_prefix(1);
    }
    return true;
  }

  absl::Status TranslateEscape() {
    if (rest_.size() < 2) return Malformed("it ends in a backslash");
    switch (const char kind = rest_[1]) {
      case 'b':
      case 'B': {
        const std::string word = absl::StrCat("[", kLoneWordMembers, "]");
        const char* inside = kind == 'b' ? "!" : "=";
        const char* outside = kind == 'b' ? "=" : "!";
        EmitNoAtom(
            absl::StrCat("(?:(?<=", word, ")(?", inside, word, ")|(?<!", word, ")(?", outside, word, "))"));
        rest_.remove_prefix(2);
        return absl::OkStatus();
      }
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
        EmitNoAtom(rest_.substr(0, 2));
        rest_.remove_prefix(2);
        return absl::OkStatus();
      case 'R':
        EmitAtom("(?>\\x{D}\\x{A}|[\\x{A}-\\x{D}\\x{85}\\x{2028}\\x{2029}])");
        rest_.remove_prefix(2);
        return absl::OkStatus();
      default:
        break;
    }
    TANDEM_ASSIGN_OR_RETURN(const Member member, ParseEscape(/*in_class=*/false));
    if (const auto* code_point = std::get_if<uint32_t>(&member)) return EmitLiteral(*code_point);
    EmitAtom(PatternOf(std::get<CharacterSet>(member)));
    return absl::OkStatus();
  }

  // The character or set that an escape means.
  absl::StatusOr<Member> ParseEscape(bool in_class) {
    if (rest_.size() < 2) return Malformed("it ends in a backslash");
    const char kind = rest_[1];
    rest_.remove_prefix(2);
    const absl::string_view word = in_class ? kWordMembers : kLoneWordMembers;
    switch (kind) {
      case 's':
        return CharacterSet::Of(kWhiteSpaceMembers);
      case 'S':
        return CharacterSet::Of(kNoWhiteSpaceMembers);
      case 'w':
        return CharacterSet::Of(word);
      case 'W':
        return CharacterSet::Of(word, true);
      case 'd':
        return CharacterSet::Of("\\p{Nd}");
      case 'D':
        return CharacterSet::Of("\\P{Nd}");
      case 'h':
        return CharacterSet::Of("0-9A-Fa-f");
      case 'H':
        return CharacterSet::Of("0-9A-Fa-f", true);
      case 't':
        return uint32_t{0x09};
      case 'n':
        return uint32_t{0x0A};
      case 'v':
        return uint32_t{0x0B};
      case 'f':
        return uint32_t{0x0C};
      case 'r':
        return uint32_t{0x0D};
      case 'a':
        return uint32_t{0x07};
      case 'e':
        return uint32_t{0x1B};
      case 'b':
        return uint32_t{0x08};  // In a class. Elsewhere it is a word boundary.
      case 'x':
        return ParseHexEscape();
      case 'u':
        return ParseHex(4, 4);
      case '0':
        return ParseOctal();
      case 'p':
      case 'P':
        // Without a brace, the letter means itself.
        if (absl::StartsWith(rest_, "{")) return ParseProperty(kind == 'P');
        return static_cast<uint32_t>(kind);
      case 'N':
        if (!in_class) return CharacterSet::Of("\\x{A}", true);
        break;
      case 'O':
        if (!in_class) return CharacterSet::Of("", true);
        break;
      default:
        break;
    }
    const auto byte = static_cast<unsigned char>(kind);
    if (absl::ascii_isdigit(byte) || absl::StrContains("gkKRXyYcCMNOABzZG", kind)) {
      return Unsupported(absl::StrCat("\\", absl::string_view(&kind, 1), in_class ? " in a class" : ""));
    }
    // Anything else means itself.
    if (byte < 0x80) return static_cast<uint32_t>(byte);
    rest_ = absl::string_view(rest_.data() - 1, rest_.size() + 1);
    return TakeCodePoint();
  }

  absl::StatusOr<Member> ParseHex(size_t least, size_t most) {
    size_t length = 0;
    uint32_t value = 0;
    while (length < most && length < rest_.size() &&
           absl::ascii_isxdigit(static_cast<unsigned char>(rest_[length]))) {
      const int digit = absl::ascii_tolower(static_cast<unsigned char>(rest_[length]));
      value = value * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
      ++length;
    }
    if (length < least) return Malformed("too few hexadecimal digits");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
      return Malformed("an escape without a character");
    rest_.remove_prefix(length);
    return value;
  }

  absl::StatusOr<Member> ParseHexEscape() {
    if (absl::StartsWith(rest_, "{")) {
      rest_.remove_prefix(1);
      TANDEM_ASSIGN_OR_RETURN(const Member value, ParseHex(1, 8));
      if (!absl::StartsWith(rest_, "}")) return Unsupported("several characters in \\x{}");
      rest_.remove_prefix(1);
      return value;
    }
    TANDEM_ASSIGN_OR_RETURN(const Member value, ParseHex(1, 2));
    if (std::get<uint32_t>(value) >= 0x80) return Unsupported("raw bytes (\\x80 and above)");
    return value;
  }

  absl::StatusOr<Member> ParseOctal() {
    uint32_t value = 0;
    for (int i = 0; i < 2 && !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '7'; ++i) {
      value = value * 8 + static_cast<uint32_t>(rest_[0] - '0');
      rest_.remove_prefix(1);
    }
    return value;
  }

  absl::StatusOr<Member> ParseProperty(bool negated) {
    const size_t close = rest_.find('}');
    if (close == absl::string_view::npos) return Malformed("a property without end");
    absl::string_view written = rest_.substr(1, close - 1);
    rest_.remove_prefix(close + 1);
    if (absl::StartsWith(written, "^")) {
      negated = !negated;
      written.remove_prefix(1);
    }
    const std::string name = NormalizePropertyName(written);
    const bool is_word = !name.empty() && std::all_of(name.begin(), name.end(),
                                                      [](unsigned char c) { return absl::ascii_isalpha(c); });
    if (!is_word) return Unsupported(absl::StrCat("the character property '", written, "'"));
    TANDEM_RETURN_IF_ERROR(CheckCase(name));
    if (std::optional<CharacterSet> set = FindPropertySet(name, /*in_brackets=*/false)) {
      set->negated = negated;
      return *std::move(set);
    }
    for (absl::string_view newer : ScriptsWithNewerCharacters()) {
      if (name == newer) return Unsupported(absl::StrCat("the script '", written, "'"));
    }
    out_.names_script = true;
    // Oniguruma means the script itself, without characters that are only also used in it.
    return CharacterSet::Of(absl::StrCat("\\p{sc:", name, "}"), negated);
  }

  absl::Status CheckCase(absl::string_view name) const {
    if (!caseless_ || !IsCasedProperty(name)) return absl::OkStatus();
    return Unsupported(absl::StrCat("the property '", name, "' without regard to case"));
  }

  // Parses from after the opening bracket to the closing one, inclusive.
  absl::StatusOr<CharacterSet> ParseClass(int depth) {
    if (depth >= kMaxNesting) return Unsupported("classes nested deeper than 64");
    CharacterSet set;
    set.negated = absl::StartsWith(rest_, "^");
    if (set.negated) rest_.remove_prefix(1);
    if (absl::StartsWith(rest_, "]")) return Unsupported("']' as the first member of a character class");
    set.operands.emplace_back();
    int num_negated = 0;  // classes in the last operand
    while (!rest_.empty()) {
      if (absl::StartsWith(rest_, "]")) {
        TANDEM_RETURN_IF_ERROR(CheckUnion(set.operands.back(), num_negated));
        rest_.remove_prefix(1);
        return set;
      }
      if (absl::StartsWith(rest_, "&&")) {
        TANDEM_RETURN_IF_ERROR(CheckUnion(set.operands.back(), num_negated));
        num_negated = 0;
        rest_.remove_prefix(2);
        set.operands.emplace_back();
        continue;
      }
      const bool is_class = rest_[0] == '[';
      TANDEM_ASSIGN_OR_RETURN(Member member, ParseMember(depth));
      if (auto* nested = std::get_if<CharacterSet>(&member)) {
        if (is_class && nested->negated) ++num_negated;
        AddToUnion(std::move(*nested), set.operands.back());
      } else {
        TANDEM_RETURN_IF_ERROR(ParseRangeFrom(std::get<uint32_t>(member), depth, set.operands.back()));
      }
    }
    return Malformed("a character class without end");
  }

  // If Oniguruma 6.9 unites a negated class with something, the result contains characters of neither.
  static absl::Status CheckUnion(const CharacterSet::Union& operand, int num_negated) {
    const bool is_alone = operand.members.empty() && operand.nested.size() == 1;
    if (num_negated == 0 || is_alone) return absl::OkStatus();
    return Unsupported("a negated class united with other members");
  }

  absl::StatusOr<Member> ParseMember(int depth) {
    if (rest_[0] == '\\') return ParseEscape(/*in_class=*/true);
    if (rest_[0] != '[') return TakeCodePoint();
    if (absl::StartsWith(rest_, "[:")) {
      const size_t close = rest_.find(":]");
      const absl::string_view written = rest_.substr(2, close == absl::string_view::npos ? 0 : close - 2);
      const bool negated = absl::StartsWith(written, "^");
      if (std::optional<CharacterSet> found = FindPropertySet(written.substr(negated ? 1 : 0), true)) {
        TANDEM_RETURN_IF_ERROR(CheckCase(written.substr(negated ? 1 : 0)));
        found->negated = negated;
        rest_.remove_prefix(close + 2);
        return *std::move(found);
      }
    }
    rest_.remove_prefix(1);
    return ParseClass(depth + 1);
  }

  // A character, or the range that begins with it.
  absl::Status ParseRangeFrom(uint32_t first, int depth, CharacterSet::Union& to) {
    uint32_t last = first;
    const bool is_range =
        rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']' && !absl::StartsWith(rest_, "-&&");
    if (is_range) {
      rest_.remove_prefix(1);
      if (rest_[0] == '[') return Unsupported("a class as the end of a range");
      TANDEM_ASSIGN_OR_RETURN(const Member end, ParseMember(depth));
      if (!std::holds_alternative<uint32_t>(end)) return Unsupported("a set as the end of a range");
      last = std::get<uint32_t>(end);
      if (last < first) return Malformed("a range of characters with descending bounds");
    }
    out_.named.push_back({first, last});
    absl::StrAppend(&to.members, Escaped(first));
    if (last > first) absl::StrAppend(&to.members, "-", Escaped(last));
    return absl::OkStatus();
  }

  absl::string_view rest_;
  TranslatedPattern out_;
  std::vector<Group> groups_;
  bool caseless_ = false;
  bool begins_group_ = true;    // only options since the group's beginning
  size_t atom_ = kNoAtom;       // the place of the last atom in the output
  bool is_quantified_ = false;  // the atom has a quantifier already
  uint32_t previous_literal_ = 0;
};

}  // namespace

absl::StatusOr<TranslatedPattern> TranslatePattern(absl::string_view oniguruma_pattern) {
  if (const std::optional<size_t> offset = FindInvalidUtf8(oniguruma_pattern)) {
    return Malformed(absl::StrCat("not UTF-8 at byte ", *offset));
  }
  return PatternTranslator(oniguruma_pattern).Translate();
}

}  // namespace tandem
