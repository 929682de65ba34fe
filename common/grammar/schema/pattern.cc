#include "common/grammar/schema/pattern.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

using Node = Pattern::Node;
using NodeKind = Node::Kind;

constexpr size_t kMostNesting = 100;
constexpr size_t kMostNfaStates = 20'000;
constexpr size_t kMostRepeats = 1'000'000;

const CodeRanges& Digits() {
  static const CodeRanges& digits = *new CodeRanges{{'0', '9'}};
  return digits;
}
const CodeRanges& WordCharacters() {
  static const CodeRanges& word = *new CodeRanges{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return word;
}
// WhiteSpace and LineTerminator of ECMA-262.
const CodeRanges& Spaces() {
  static const CodeRanges& spaces = *new CodeRanges{
      {0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
      {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  return spaces;
}
const CodeRanges& LineEnds() {
  static const CodeRanges& ends = *new CodeRanges{{0x0a, 0x0a}, {0x0d, 0x0d}, {0x2028, 0x2029}};
  return ends;
}

class PatternParser {
 public:
  explicit PatternParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Node> ReadChoice() {
    if (++depth_ > kMostNesting) return Fail("more than 100 nested groups");
    Node choice{.kind = NodeKind::kChoice, .characters = {}, .children = {}};
    do {
      TANDEM_ASSIGN_OR_RETURN(Node sequence, ReadSequence());
      choice.children.push_back(std::move(sequence));
    } while (Take("|"));
    --depth_;
    // Single characters are one class: (a|b){1,1000} would otherwise have two ways on at each place.
    const bool is_class = std::all_of(choice.children.begin(), choice.children.end(),
                                      [](const Node& child) { return child.kind == NodeKind::kCharacter; });
    Node& first = choice.children[0];
    for (size_t i = 1; i < choice.children.size() && is_class; ++i) {
      const CodeRanges& more = choice.children[i].characters;
      first.characters.insert(first.characters.end(), more.begin(), more.end());
    }
    if (!is_class && choice.children.size() > 1) return choice;
    Node only = std::move(first);
    if (is_class) only.characters = Normalized(std::move(only.characters));
    return only;
  }

  absl::StatusOr<Node> ReadSequence() {
    Node sequence;
    while (!AtEnd() && text_[at_] != '|' && text_[at_] != ')') {
      TANDEM_ASSIGN_OR_RETURN(Node atom, ReadAtom());
      TANDEM_ASSIGN_OR_RETURN(atom, ReadQuantifiers(std::move(atom)));
      sequence.children.push_back(std::move(atom));
    }
    if (sequence.children.size() != 1) return sequence;
    Node only = std::move(sequence.children[0]);
    return only;
  }

  bool Take(absl::string_view wanted) {
    if (!absl::StartsWith(text_.substr(at_), wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  bool AtEnd() const { return at_ == text_.size(); }
  size_t at() const { return at_; }
  void MoveTo(size_t at) { at_ = at; }

  absl::Status Fail(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("byte ", at_, ": ", what));
  }

 private:
  absl::StatusOr<Node> ReadQuantifiers(Node atom) {
    size_t least = 0;
    size_t most = kNoLimit;
    const size_t begin = at_;
    if (Take("+")) {
      least = 1;
    } else if (Take("?")) {
      most = 1;
    } else if (IsCountedHere()) {
      Take("{");
      TANDEM_ASSIGN_OR_RETURN(least, ReadCount());
      most = least;
      if (Take(",")) {
        most = kNoLimit;
        if (!absl::StartsWith(text_.substr(at_), "}")) {
          TANDEM_ASSIGN_OR_RETURN(most, ReadCount());
        }
      }
      if (!Take("}")) return Fail("expected }");
      if (least > most) return Fail("the least number of repetitions is above the most");
    } else if (!Take("*")) {
      return atom;
    }
    if (atom.kind == NodeKind::kBegin || atom.kind == NodeKind::kEnd) {
      at_ = begin;
      return Fail("^ and $ cannot be repeated");
    }
    Take("?");  // Lazy: it matches the same texts.
    if (!AtEnd() && (absl::StrContains("*+?", text_[at_]) || IsCountedHere()))
      return Fail("nothing to repeat");
    Node repeat{.kind = NodeKind::kRepeat, .characters = {}, .children = {}, .least = least, .most = most};
    repeat.children.push_back(std::move(atom));
    return repeat;
  }

  // Whether a number of repetitions stands here. A brace in front of anything but a digit or a comma, which
  // some read as {0,, stands for itself, as in nearly all engines.
  bool IsCountedHere() const {
    const absl::string_view rest = text_.substr(at_);
    return absl::StartsWith(rest, "{") && rest.size() > 1 &&
           (absl::ascii_isdigit(static_cast<unsigned char>(rest[1])) || rest[1] == ',');
  }

  absl::StatusOr<size_t> ReadCount() {
    size_t count = 0;
    const size_t begin = at_;
    for (; !AtEnd() && absl::ascii_isdigit(static_cast<unsigned char>(text_[at_])); ++at_) {
      count = 10 * count + static_cast<size_t>(text_[at_] - '0');
      if (count > kMostRepeats) return Fail("expected at most 1,000,000 repetitions");
    }
    if (at_ == begin) return Fail("expected a number of repetitions; a brace of its own is \\{");
    return count;
  }

  static Node Characters(CodeRanges ranges) {
    return Node{.kind = NodeKind::kCharacter, .characters = std::move(ranges), .children = {}};
  }

  absl::StatusOr<Node> ReadAtom() {
    if (Take("^")) return Node{.kind = NodeKind::kBegin, .characters = {}, .children = {}};
    if (Take("$")) return Node{.kind = NodeKind::kEnd, .characters = {}, .children = {}};
    if (Take(".")) return Characters(Complement(LineEnds()));
    if (Take("[")) return ReadClass();
    if (Take("(")) return ReadGroup();
    if (Take("\\")) {
      TANDEM_ASSIGN_OR_RETURN(CodeRanges escaped, ReadEscape(/*in_class=*/false));
      return Characters(std::move(escaped));
    }
    if (absl::StrContains("*+?", text_[at_]) || IsCountedHere()) return Fail("nothing to repeat");
    return Characters({OneCharacter()});
  }

  CodeRange OneCharacter() {
    absl::string_view rest = text_.substr(at_);
    const size_t before = rest.size();
    const uint32_t code_point = TakeCodePoint(&rest);
    at_ += before - rest.size();
    return {code_point, code_point};
  }

  absl::StatusOr<Node> ReadGroup() {
    if (Take("?")) {
      // As Python writes the names of groups.
      if (absl::StartsWith(text_.substr(at_), "P<")) Take("P");
      if (Take("<") && !absl::StartsWith(text_.substr(at_), "=") &&
          !absl::StartsWith(text_.substr(at_), "!")) {
        const size_t end = text_.find('>', at_);
        if (end == absl::string_view::npos || end == at_) return Fail("expected the group's name");
        at_ = end + 1;
      } else if (!Take(":")) {
        return Fail(
            "look around is supported as (?=...) and (?!...) at the beginning only, flags not at all");
      }
    }
    TANDEM_ASSIGN_OR_RETURN(Node group, ReadChoice());
    if (!Take(")")) return Fail("expected )");
    return group;
  }

  absl::StatusOr<Node> ReadClass() {
    const bool negated = Take("^");
    CodeRanges all;
    while (true) {
      if (AtEnd()) return Fail("expected ]");
      if (Take("]")) break;
      TANDEM_ASSIGN_OR_RETURN(CodeRanges first, ReadClassMember());
      const bool is_range =
          absl::StartsWith(text_.substr(at_), "-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        TANDEM_ASSIGN_OR_RETURN(const CodeRanges last, ReadClassMember());
        const auto is_one = [](const CodeRanges& ranges) {
          return ranges.size() == 1 && ranges[0].first == ranges[0].last;
        };
        if (!is_one(first) || !is_one(last)) {
          // Beside \w or its like the dash stands for itself, as in ECMA-262 without the flag u.
          first.push_back({'-', '-'});
          first.insert(first.end(), last.begin(), last.end());
        } else if (first[0].first > last[0].first) {
          return Fail("expected a range of characters, the lesser one first");
        } else {
          first[0].last = last[0].last;
        }
      }
      all.insert(all.end(), first.begin(), first.end());
    }
    all = Normalized(std::move(all));
    return Characters(negated ? Complement(all) : std::move(all));
  }

  absl::StatusOr<CodeRanges> ReadClassMember() {
    if (Take("\\")) return ReadEscape(/*in_class=*/true);
    return CodeRanges{OneCharacter()};
  }

  absl::StatusOr<CodeRanges> ReadEscape(bool in_class) {
    if (AtEnd()) return Fail("expected a character after the backslash");
    const char c = text_[at_++];
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Complement(Digits());
      case 'w':
        return WordCharacters();
      case 'W':
        return Complement(WordCharacters());
      case 's':
        return Spaces();
      case 'S':
        return Complement(Spaces());
      case 't':
        return CodeRanges{{'\t', '\t'}};
      case 'n':
        return CodeRanges{{'\n', '\n'}};
      case 'r':
        return CodeRanges{{'\r', '\r'}};
      case 'f':
        return CodeRanges{{'\f', '\f'}};
      case 'v':
        return CodeRanges{{'\v', '\v'}};
      case '0':
        if (!AtEnd() && absl::ascii_isdigit(static_cast<unsigned char>(text_[at_]))) break;
        return CodeRanges{{0, 0}};
      case 'x':
        return ReadHex(2);
      case 'u':
        return ReadUnicode();
      case 'c':
        if (AtEnd() || !absl::ascii_isalpha(static_cast<unsigned char>(text_[at_]))) break;
        return CodeRanges{{static_cast<uint32_t>(text_[at_] & 31), static_cast<uint32_t>(text_[at_++] & 31)}};
      case 'b':
        if (in_class) return CodeRanges{{'\b', '\b'}};
        break;
      default:
        break;
    }
    --at_;
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      return Fail(absl::StrCat("the escape \\", absl::string_view(&c, 1), " is not supported"));
    }
    return CodeRanges{OneCharacter()};
  }

  absl::StatusOr<CodeRanges> ReadHex(size_t num_digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < num_digits; ++i, ++at_) {
      if (AtEnd() || !absl::ascii_isxdigit(static_cast<unsigned char>(text_[at_]))) {
        return Fail("expected a hexadecimal digit");
      }
      const char c = absl::ascii_tolower(static_cast<unsigned char>(text_[at_]));
      value = 16 * value + static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return CodeRanges{{value, value}};
  }

  absl::StatusOr<CodeRanges> ReadUnicode() {
    if (Take("{")) {
      size_t digits = 0;
      while (at_ + digits < text_.size() && text_[at_ + digits] != '}') ++digits;
      if (digits == 0 || digits > 6) return Fail("expected 1 to 6 hexadecimal digits");
      TANDEM_ASSIGN_OR_RETURN(CodeRanges one, ReadHex(digits));
      if (!Take("}") || one[0].first > kLastCodePoint) return Fail("expected a code point");
      return one;
    }
    TANDEM_ASSIGN_OR_RETURN(CodeRanges one, ReadHex(4));
    if ((one[0].first & 0xfc00) == 0xd800 && Take("\\u")) {
      TANDEM_ASSIGN_OR_RETURN(const CodeRanges low, ReadHex(4));
      if ((low[0].first & 0xfc00) != 0xdc00) return Fail("expected the second half of a surrogate pair");
      const uint32_t whole = 0x10000 + ((one[0].first & 0x3ff) << 10) + (low[0].first & 0x3ff);
      return CodeRanges{{whole, whole}};
    }
    if ((one[0].first & 0xf800) == 0xd800) return Fail("half of a surrogate pair, which no text has");
    return one;
  }

  const absl::string_view text_;
  size_t at_ = 0;
  size_t depth_ = 0;
};

// States and steps for a node.
class NfaBuilder {
 public:
  explicit NfaBuilder(Nfa* nfa) : nfa_(*nfa) {}

  // Returns the state behind `node`.
  absl::StatusOr<size_t> Add(const Node& node, size_t from) {
    if (nfa_.size() > kMostNfaStates) {
      return absl::ResourceExhaustedError("too large: its automaton has more than 20,000 steps");
    }
    switch (node.kind) {
      case NodeKind::kCharacter: {
        const size_t to = nfa_.AddState();
        nfa_.AddStep(from, &node.characters, to);
        return to;
      }
      case NodeKind::kSequence:
        for (const Node& child : node.children) {
          TANDEM_ASSIGN_OR_RETURN(from, Add(child, from));
        }
        return from;
      case NodeKind::kChoice: {
        const size_t to = nfa_.AddState();
        for (const Node& child : node.children) {
          const size_t begin = nfa_.AddState();
          nfa_.AddEmpty(from, begin);
          TANDEM_ASSIGN_OR_RETURN(const size_t end, Add(child, begin));
          nfa_.AddEmpty(end, to);
        }
        return to;
      }
      case NodeKind::kRepeat:
        return AddRepeat(node, from);
      case NodeKind::kBegin:
      case NodeKind::kEnd: {
        const size_t to = nfa_.AddState();
        nfa_.AddEmpty(from, to, node.kind == NodeKind::kBegin ? Nfa::Where::kAtBegin : Nfa::Where::kAtEnd);
        return to;
      }
    }
    return from;
  }

 private:
  absl::StatusOr<size_t> AddRepeat(const Node& node, size_t from) {
    const Node& child = node.children[0];
    for (size_t i = 0; i < node.least; ++i) {
      // What takes nothing takes nothing however often.
      const size_t size = nfa_.size();
      TANDEM_ASSIGN_OR_RETURN(from, Add(child, from));
      if (nfa_.size() == size) break;
    }
    if (node.most == kNoLimit) {
      const size_t loop = nfa_.AddState();
      nfa_.AddEmpty(from, loop);
      TANDEM_ASSIGN_OR_RETURN(const size_t end, Add(child, loop));
      nfa_.AddEmpty(end, loop);
      return loop;
    }
    const size_t to = nfa_.AddState();
    nfa_.AddEmpty(from, to);
    for (size_t i = node.least; i < node.most; ++i) {
      const size_t size = nfa_.size();
      TANDEM_ASSIGN_OR_RETURN(from, Add(child, from));
      nfa_.AddEmpty(from, to);
      if (nfa_.size() == size) break;
    }
    return to;
  }

  Nfa& nfa_;
};

// The texts in which `node` matches, at the beginning or anywhere.
absl::StatusOr<Language> TextsWith(const Node& node, bool at_begin, WorkBudget* budget) {
  Nfa nfa;
  const size_t begin = nfa.AddState();
  size_t from = begin;
  if (!at_begin) {
    nfa.AddStep(begin, &AllCodePoints(), begin);
    from = nfa.AddState();
    nfa.AddEmpty(begin, from);
  }
  TANDEM_ASSIGN_OR_RETURN(const size_t end, NfaBuilder(&nfa).Add(node, from));
  const size_t rest = nfa.AddState();
  nfa.AddEmpty(end, rest);
  nfa.AddStep(rest, &AllCodePoints(), rest);
  return nfa.ToLanguage(begin, rest, budget);
}

}  // namespace

absl::StatusOr<Pattern> Pattern::Parse(absl::string_view text) {
  PatternParser parser(text);
  Pattern pattern;
  const bool anchored = parser.Take("^");
  while (true) {
    const size_t before = parser.at();
    const bool positive = parser.Take("(?=");
    if (!positive && !parser.Take("(?!")) break;
    // Without ^ it may hold anywhere.
    if (!anchored) {
      parser.MoveTo(before);
      return parser.Fail("expected ^ in front of (?=...) and (?!...)");
    }
    TANDEM_ASSIGN_OR_RETURN(Node node, parser.ReadChoice());
    if (!parser.Take(")")) return parser.Fail("expected )");
    pattern.look_aheads_.push_back({std::move(node), !positive});
  }
  if (pattern.look_aheads_.empty()) {
    parser.MoveTo(0);
    TANDEM_ASSIGN_OR_RETURN(pattern.node_, parser.ReadChoice());
  } else {
    // They are for what they stand in front of, which is not all of a choice.
    TANDEM_ASSIGN_OR_RETURN(Node behind, parser.ReadSequence());
    if (parser.Take("|")) return parser.Fail("expected brackets around a choice behind (?=...) and (?!...)");
    pattern.node_.children.push_back({.kind = Node::Kind::kBegin, .characters = {}, .children = {}});
    pattern.node_.children.push_back(std::move(behind));
  }
  if (!parser.AtEnd()) return parser.Fail("nothing to close");
  return pattern;
}

std::optional<CharacterRun> Pattern::AsRun() const {
  const auto& parts = node_.children;
  if (!look_aheads_.empty() || node_.kind != Node::Kind::kSequence || parts.size() != 3 ||
      parts[0].kind != Node::Kind::kBegin || parts[2].kind != Node::Kind::kEnd) {
    return std::nullopt;
  }
  const Node& run = parts[1];
  if (run.kind == Node::Kind::kCharacter) return CharacterRun{run.characters, 1, 1};
  if (run.kind != Node::Kind::kRepeat || run.children[0].kind != Node::Kind::kCharacter) return std::nullopt;
  return CharacterRun{run.children[0].characters, run.least, run.most};
}

absl::StatusOr<Language> Pattern::ToLanguage(WorkBudget* budget) const {
  TANDEM_ASSIGN_OR_RETURN(Language language, TextsWith(node_, /*at_begin=*/false, budget));
  for (const LookAhead& ahead : look_aheads_) {
    TANDEM_ASSIGN_OR_RETURN(const Language texts, TextsWith(ahead.node, /*at_begin=*/true, budget));
    TANDEM_ASSIGN_OR_RETURN(language, ahead.negative ? Language::Subtract(language, texts, budget)
                                                     : Language::Intersect(language, texts, budget));
  }
  return language;
}

}  // namespace tandem
