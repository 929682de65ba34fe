#include "tests/fuzz/expression.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/constraint_case.h"

namespace tandem::fuzz {
namespace {

using Kind = Expression::Kind;

constexpr size_t kMostBytes = 512;
using Places = std::bitset<kMostBytes + 1>;
constexpr int kNever = std::numeric_limits<int>::max() / 4;

bool InClass(const Expression& expression, uint32_t code) {
  const bool inside =
      std::any_of(expression.ranges.begin(), expression.ranges.end(),
                  [code](const auto& range) { return code >= range.first && code <= range.second; });
  return inside != expression.negated;
}

// Where the texts of expressions end that begin at a place of a text. What a rule needs of others, and of
// itself, is asked again until nothing is added: so no recursion is left out, on whichever side.
class Reading {
 public:
  Reading(const Rules& rules, absl::string_view text) : rules_(rules), text_(text) {}

  bool IsText() {
    Ask(0, 0);
    for (bool changed = true; changed;) {
      changed = false;
      // Asking adds entries, which a map allows meanwhile.
      for (auto& [place, ends] : ends_) {
        const Places found = ends | Ends(rules_[place.first], place.second);
        if (found == ends && known_ == ends_.size()) continue;
        known_ = ends_.size();
        ends = found;
        changed = true;
      }
    }
    return Ask(0, 0).test(text_.size());
  }

 private:
  Places Ask(size_t rule, size_t at) { return ends_[{rule, at}]; }

  Places EndsFromAll(const Expression& expression, const Places& begins) {
    Places ends;
    for (size_t at = 0; at <= text_.size(); ++at) {
      if (begins.test(at)) ends |= Ends(expression, at);
    }
    return ends;
  }

  Places Ends(const Expression& expression, size_t at) {
    Places ends;
    switch (expression.kind) {
      case Kind::kText:
        if (absl::StartsWith(text_.substr(at), expression.text)) ends.set(at + expression.text.size());
        break;
      case Kind::kClass: {
        const auto [code, length] = FirstCharacter(text_.substr(at));
        if (length > 0 && InClass(expression, code)) ends.set(at + length);
        break;
      }
      case Kind::kRule:
        ends = Ask(expression.rule, at);
        break;
      case Kind::kSequence:
        ends.set(at);
        for (const Expression& part : expression.parts) ends = EndsFromAll(part, ends);
        break;
      case Kind::kChoice:
        for (const Expression& part : expression.parts) ends |= Ends(part, at);
        break;
      case Kind::kRepeat: {
        Places last;
        last.set(at);
        if (expression.least == 0) ends = last;
        // Beyond the length of the text nothing is added, except empty ones.
        const int most = expression.most == Expression::kAnyNumber
                             ? expression.least + static_cast<int>(text_.size()) + 1
                             : expression.most;
        for (int times = 1; times <= most && last.any(); ++times) {
          last = EndsFromAll(expression.parts[0], last);
          if (times >= expression.least) {
            if ((ends | last) == ends && times > expression.least) break;
            ends |= last;
          }
        }
        break;
      }
    }
    return ends;
  }

  const Rules& rules_;
  const absl::string_view text_;
  std::map<std::pair<size_t, size_t>, Places> ends_;
  size_t known_ = 0;
};

// How deep the shallowest text of an expression is, given those of rules; kNever: there is none.
int Height(const Expression& expression, const std::vector<int>& rules) {
  int height = 0;
  switch (expression.kind) {
    case Kind::kText:
      return 0;
    case Kind::kClass:
      return 0;
    case Kind::kRule:
      return std::min(kNever, rules[expression.rule] + 1);
    case Kind::kSequence:
      for (const Expression& part : expression.parts) height = std::max(height, Height(part, rules));
      return height;
    case Kind::kChoice:
      height = kNever;
      for (const Expression& part : expression.parts) height = std::min(height, Height(part, rules));
      return height;
    case Kind::kRepeat:
      return expression.least == 0 ? 0 : Height(expression.parts[0], rules);
  }
  return height;
}

std::vector<int> Heights(const Rules& rules) {
  std::vector<int> heights(rules.size(), kNever);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < rules.size(); ++i) {
      const int height = Height(rules[i], heights);
      changed = changed || height < heights[i];
      heights[i] = std::min(heights[i], height);
    }
  }
  return heights;
}

class Sampler {
 public:
  Sampler(const Rules& rules, InputReader& reader)
      : rules_(rules), heights_(Heights(rules)), reader_(reader) {}

  std::string Sample(const Expression& expression) {
    ++steps_;
    std::string text;
    switch (expression.kind) {
      case Kind::kText:
        return expression.text;
      case Kind::kClass:
        return SampleCharacter(expression);
      case Kind::kRule:
        return Sample(rules_[expression.rule]);
      case Kind::kSequence:
        for (const Expression& part : expression.parts) text += Sample(part);
        return text;
      case Kind::kChoice:
        return Sample(Choose(expression.parts));
      case Kind::kRepeat: {
        int times = expression.least;
        const int most = expression.most == Expression::kAnyNumber ? expression.least + 2 : expression.most;
        if (!IsTired() && Height(expression.parts[0], heights_) < kNever) times += reader_.Below(3);
        for (int i = 0; i < std::min(times, most); ++i) text += Sample(expression.parts[0]);
        return text;
      }
    }
    return text;
  }

 private:
  bool IsTired() const { return steps_ > 30; }

  const Expression& Choose(const std::vector<Expression>& parts) {
    std::vector<const Expression*> finite;
    for (const Expression& part : parts) {
      if (Height(part, heights_) < kNever) finite.push_back(&part);
    }
    if (!IsTired()) return *finite[reader_.Below(static_cast<int>(finite.size()))];
    return **std::min_element(finite.begin(), finite.end(), [this](const Expression* a, const Expression* b) {
      return Height(*a, heights_) < Height(*b, heights_);
    });
  }

  std::string SampleCharacter(const Expression& expression) {
    if (!expression.negated) {
      const auto& [first, last] =
          expression.ranges[reader_.Below(static_cast<int>(expression.ranges.size()))];
      return Utf8(first + reader_.Byte() % (last - first + 1));
    }
    for (int tries = 0; tries < 20; ++tries) {
      const std::string character = MakeCharacter(reader_);
      if (InClass(expression, FirstCharacter(character).first)) return character;
    }
    return "~";
  }

  const Rules& rules_;
  const std::vector<int> heights_;
  InputReader& reader_;
  int steps_ = 0;
};

Expression MakeClass(InputReader& reader) {
  Expression made{.kind = Kind::kClass};
  const int num_ranges = 1 + reader.Below(2);
  for (int i = 0; i < num_ranges; ++i) {
    const uint32_t first = FirstCharacter(MakeCharacter(reader)).first;
    // Not across the surrogates, which are no characters.
    const uint32_t more = first < 0xd000 ? reader.Below(5) : 0;
    made.ranges.emplace_back(first, first + more);
  }
  made.negated = reader.Below(4) == 0;
  return made;
}

std::string EscapedCode(uint32_t code) {
  return code > 0xffff ? absl::StrCat("\\U", absl::Hex(code, absl::kZeroPad8))
                       : absl::StrCat("\\u", absl::Hex(code, absl::kZeroPad4));
}

std::string PrintRule(const Expression& expression) {
  std::string text;
  switch (expression.kind) {
    case Kind::kText:
      for (absl::string_view rest = expression.text; !rest.empty();) {
        const auto [code, length] = FirstCharacter(rest);
        const bool plain = code >= 0x20 && code != '"' && code != '\\' && code != 0x7f;
        text += plain ? std::string(rest.substr(0, length)) : EscapedCode(code);
        rest.remove_prefix(length);
      }
      return absl::StrCat("\"", text, "\"");
    case Kind::kClass:
      for (const auto& [first, last] : expression.ranges) {
        absl::StrAppend(&text, EscapedCode(first));
        if (last != first) absl::StrAppend(&text, "-", EscapedCode(last));
      }
      return absl::StrCat(expression.negated ? "[^" : "[", text, "]");
    case Kind::kRule:
      return expression.rule == 0 ? "root" : absl::StrCat("rule", expression.rule);
    case Kind::kSequence:
      for (const Expression& part : expression.parts) absl::StrAppend(&text, PrintRule(part), " ");
      return expression.parts.empty() ? "\"\"" : absl::StrCat("(", text, ")");
    case Kind::kChoice:
      for (const Expression& part : expression.parts) {
        absl::StrAppend(&text, text.empty() ? "" : " | ", PrintRule(part));
      }
      return absl::StrCat("(", text, ")");
    case Kind::kRepeat:
      break;
  }
  text = absl::StrCat("(", PrintRule(expression.parts[0]), ")");
  if (expression.most == Expression::kAnyNumber) {
    return text + (expression.least == 0   ? "*"
                   : expression.least == 1 ? "+"
                                           : absl::StrCat("{", expression.least, ",}"));
  }
  if (expression.least == 0 && expression.most == 1) return text + "?";
  return absl::StrCat(text, "{", expression.least, ",", expression.most, "}");
}

}  // namespace

std::string Utf8(uint32_t code) {
  std::string text;
  const auto add = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
    return text;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::array<uint32_t, 4> kLead = {0, 0xc0, 0xe0, 0xf0};
  add(kLead[static_cast<size_t>(more)] | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) add(0x80 | (code >> (6 * i) & 0x3f));
  return text;
}

std::pair<uint32_t, size_t> FirstCharacter(absl::string_view text) {
  if (text.empty()) return {0, 0};
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (length == 0 || text.size() < length) return {0, 0};
  uint32_t code = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0) != 0x80) return {0, 0};
    code = code << 6 | (byte & 0x3f);
  }
  if (Utf8(code) != text.substr(0, length) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
    return {0, 0};
  return {code, length};
}

Expression MakeExpression(InputReader& reader, size_t num_rules, int depth) {
  const int kinds = depth <= 0 ? 4 : 10;
  switch (reader.Below(kinds)) {
    case 0:
    case 1: {
      Expression made{.kind = Kind::kText};
      for (int i = 1 + reader.Below(3); i > 0; --i) made.text += MakeCharacter(reader);
      return made;
    }
    case 2:
      return MakeClass(reader);
    case 3:
    case 4:
      if (num_rules == 0) return MakeClass(reader);
      return {.kind = Kind::kRule, .rule = reader.Below(static_cast<int>(num_rules))};
    case 5:
    case 6: {
      Expression made{.kind = Kind::kSequence};
      for (int i = reader.Below(4); i > 0; --i)
        made.parts.push_back(MakeExpression(reader, num_rules, depth - 1));
      return made;
    }
    case 7:
    case 8: {
      Expression made{.kind = Kind::kChoice};
      for (int i = 1 + reader.Below(3); i > 0; --i) {
        made.parts.push_back(MakeExpression(reader, num_rules, depth - 1));
      }
      return made;
    }
    default: {
      Expression made{.kind = Kind::kRepeat, .least = reader.Below(3)};
      made.most = reader.Below(2) == 0 ? Expression::kAnyNumber : made.least + 1 + reader.Below(3);
      made.parts.push_back(MakeExpression(reader, num_rules, depth - 1));
      return made;
    }
  }
}

std::vector<bool> FiniteRules(const Rules& rules) {
  std::vector<bool> finite;
  for (const int height : Heights(rules)) finite.push_back(height < kNever);
  return finite;
}

bool HasText(const Rules& rules, absl::string_view text) {
  return text.size() <= kMostBytes && Reading(rules, text).IsText();
}

std::string SampleText(const Rules& rules, InputReader& reader) {
  return Sampler(rules, reader).Sample(rules[0]);
}

std::string PrintGrammar(const Rules& rules) {
  std::string text;
  for (size_t i = 0; i < rules.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "root" : absl::StrCat("rule", i), " ::= ", PrintRule(rules[i]), "\n");
  }
  return text;
}

std::string PrintPattern(const Expression& expression) {
  std::string text;
  const auto plain = [](absl::string_view characters, absl::string_view special) {
    std::string escaped;
    for (const char c : characters) {
      if (absl::StrContains(special, c)) escaped.push_back('\\');
      escaped.push_back(c);
    }
    return escaped;
  };
  switch (expression.kind) {
    case Kind::kText:
      return plain(expression.text, "\\^$.|?*+()[]{}/");
    case Kind::kClass:
      if (!expression.text.empty()) return expression.text;
      for (const auto& [first, last] : expression.ranges) {
        absl::StrAppend(&text, plain(Utf8(first), "\\^]-["));
        if (last != first) absl::StrAppend(&text, "-", plain(Utf8(last), "\\^]-["));
      }
      return absl::StrCat(expression.negated ? "[^" : "[", text, "]");
    case Kind::kRule:
      return "";
    case Kind::kSequence:
      for (const Expression& part : expression.parts) absl::StrAppend(&text, PrintPattern(part));
      return absl::StrCat("(?:", text, ")");
    case Kind::kChoice:
      for (const Expression& part : expression.parts) {
        absl::StrAppend(&text, text.empty() ? "" : "|", PrintPattern(part));
      }
      return absl::StrCat("(", text, ")");
    case Kind::kRepeat:
      break;
  }
  text = absl::StrCat("(", PrintPattern(expression.parts[0]), ")");
  if (expression.most == Expression::kAnyNumber) {
    return text + (expression.least == 0   ? "*"
                   : expression.least == 1 ? "+"
                                           : absl::StrCat("{", expression.least, ",}"));
  }
  if (expression.least == 0 && expression.most == 1) return text + "?";
  return absl::StrCat(text, "{", expression.least, ",", expression.most, "}");
}

}  // namespace tandem::fuzz
