#include "common/grammar/schema/json_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {
namespace {

using Sequence = RuleSet::Sequence;
using Type = JsonValue::Type;

// Blanks in front of a token, in groups: each place within a group or behind the groups has masks of its own.
constexpr size_t kGroup = 4;
constexpr size_t kMostGroups = 9;
// Strings of so many characters at most have a rule for each number of characters that are left, whose masks
// are compiled. Longer ones are made of blocks. A token that goes on behind its block has to be looked at
// when a mask is made, which most would have to where characters are counted one by one.
constexpr size_t kMostChained = 64;
constexpr size_t kBlock = 32;
constexpr size_t kMostBlocks = 4096;

// Characters that a string of JSON may hold as they are.
const CodeRanges& PlainCharacters() {
  static const CodeRanges& plain = *new CodeRanges(Complement({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}));
  return plain;
}
const CodeRanges& HexDigits() {
  static const CodeRanges& digits = *new CodeRanges{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  return digits;
}

// States of an automaton in which most characters may follow, and with them most tokens: each has a mask of
// its own, for which the whole vocabulary is looked through.
constexpr ptrdiff_t kMostWide = 1'024;

bool IsWide(const Language::State& state) {
  size_t count = 0;
  for (const Language::Arc& arc : state.arcs) count += arc.range.last - arc.range.first + 1;
  return count > kLastCodePoint / 2;
}

// Equal for equal languages: their automata are the smallest, and numbered in one way.
std::string KeyOf(const Language& texts, bool is_string) {
  std::string key(1, is_string ? 's' : 't');
  const auto add = [&key](uint32_t number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const Language::State& state : texts.states()) {
    add(state.accepts ? 1 : 0);
    add(static_cast<uint32_t>(state.arcs.size()));
    for (const Language::Arc& arc : state.arcs) {
      for (const uint32_t number : {arc.range.first, arc.range.last, arc.target}) add(number);
    }
  }
  return key;
}

char Closing(char bracket) {
  return bracket == '{' ? '}' : ']';
}

}  // namespace

Sequence operator+(Sequence left, const Sequence& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

size_t JsonRules::Space() {
  if (space_.has_value()) return *space_;
  space_ = rules_.AddRule();
  const size_t blank = rules_.AddRule();
  const size_t group = rules_.AddRule();
  const size_t line_end = rules_.AddRule();
  // The budget for these few alternatives is there, or what comes next finds that it is not.
  const RuleSet::Term character = RuleSet::Character({{'\t', '\t'}, {' ', ' '}});
  rules_.Add(blank, {character}).IgnoreError();
  rules_.Add(group, Sequence(kGroup, character)).IgnoreError();
  rules_.Add(line_end, {RuleSet::Text("\n")}).IgnoreError();
  rules_.Add(line_end, {RuleSet::Text("\r\n")}).IgnoreError();
  rules_.Add(*space_, {}).IgnoreError();
  rules_.Add(*space_, {RuleSet::Text(" ")}).IgnoreError();
  rules_
      .Add(*space_, {RuleSet::Repeated(line_end, 1, 2), RuleSet::Repeated(group, 0, kMostGroups),
                     RuleSet::Repeated(blank, 0, kGroup)})
      .IgnoreError();
  return *space_;
}

Sequence JsonRules::Between(absl::string_view token, absl::string_view compact) {
  if (layout_ == JsonLayout::kCompact) return {RuleSet::Text(std::string(compact))};
  return {RuleSet::Rule(Space()), RuleSet::Text(std::string(token)), RuleSet::Rule(Space())};
}

Sequence JsonRules::Open(char bracket) {
  Sequence open = {RuleSet::Text(std::string(1, bracket))};
  if (layout_ == JsonLayout::kFree) open.push_back(RuleSet::Rule(Space()));
  return open;
}

Sequence JsonRules::Close(char bracket) {
  Sequence close;
  if (layout_ == JsonLayout::kFree) close.push_back(RuleSet::Rule(Space()));
  close.push_back(RuleSet::Text(std::string(1, bracket)));
  return close;
}

Sequence JsonRules::Comma() {
  return Between(",", ", ");
}
Sequence JsonRules::Colon() {
  return Between(":", ": ");
}

Sequence JsonRules::Value(const JsonValue& value) {
  switch (value.type) {
    case Type::kNull:
      return {RuleSet::Text("null")};
    case Type::kBoolean:
      return {RuleSet::Text(value.boolean ? "true" : "false")};
    case Type::kNumber:
      return {RuleSet::Text(value.text)};
    case Type::kString:
      return {RuleSet::Text(JsonString(value.text))};
    case Type::kArray: {
      if (value.items.empty()) return {RuleSet::Text("[]")};
      Sequence list = Open('[');
      for (const JsonValue& item : value.items) {
        if (&item != &value.items[0]) list = std::move(list) + Comma();
        list = std::move(list) + Value(item);
      }
      return std::move(list) + Close(']');
    }
    case Type::kObject:
      break;
  }
  if (value.members.empty()) return {RuleSet::Text("{}")};
  Sequence object = Open('{');
  for (const auto& [name, member] : value.members) {
    if (&member != &value.members[0].value) object = std::move(object) + Comma();
    object.push_back(RuleSet::Text(JsonString(name)));
    object = std::move(object) + Colon() + Value(member);
  }
  return std::move(object) + Close('}');
}

absl::StatusOr<size_t> JsonRules::AnyValue() {
  if (any_value_.has_value()) return *any_value_;
  const size_t value = rules_.AddRule();
  any_value_ = value;
  TANDEM_ASSIGN_OR_RETURN(const size_t string, AnyString());
  TANDEM_ASSIGN_OR_RETURN(const size_t number, AnyNumber(false));
  for (const char* word : {"null", "true", "false"}) {
    TANDEM_RETURN_IF_ERROR(rules_.Add(value, {RuleSet::Text(word)}));
  }
  TANDEM_RETURN_IF_ERROR(rules_.Add(value, {RuleSet::Rule(string)}));
  TANDEM_RETURN_IF_ERROR(rules_.Add(value, {RuleSet::Rule(number)}));
  for (const char bracket : {'{', '['}) {
    // What stands behind the first one.
    const size_t rest = rules_.AddRule();
    const Sequence one = bracket == '{'
                             ? Sequence{RuleSet::Rule(string)} + Colon() + Sequence{RuleSet::Rule(value)}
                             : Sequence{RuleSet::Rule(value)};
    TANDEM_RETURN_IF_ERROR(rules_.Add(rest, Comma() + one + Sequence{RuleSet::Rule(rest)}));
    TANDEM_RETURN_IF_ERROR(rules_.Add(rest, Close(Closing(bracket))));
    TANDEM_RETURN_IF_ERROR(rules_.Add(value, Open(bracket) + one + Sequence{RuleSet::Rule(rest)}));
    TANDEM_RETURN_IF_ERROR(
        rules_.Add(value, Open(bracket) + Sequence{RuleSet::Text(std::string(1, Closing(bracket)))}));
  }
  return value;
}

absl::StatusOr<size_t> JsonRules::AddEscapes() {
  // Behind a backslash. Halves of surrogate pairs stand together or not at all.
  const size_t escape = rules_.AddRule();
  const auto hex = [] { return RuleSet::Character(HexDigits()); };
  const auto of = [](absl::string_view characters) {
    CodeRanges ranges;
    for (const char c : characters) ranges.push_back({static_cast<uint32_t>(c), static_cast<uint32_t>(c)});
    return RuleSet::Character(Normalized(std::move(ranges)));
  };
  TANDEM_RETURN_IF_ERROR(rules_.Add(escape, {of("\"\\/bfnrt")}));
  TANDEM_RETURN_IF_ERROR(
      rules_.Add(escape, {RuleSet::Text("u"), of("0123456789ABCEFabcef"), hex(), hex(), hex()}));
  TANDEM_RETURN_IF_ERROR(rules_.Add(escape, {RuleSet::Text("u"), of("Dd"), of("01234567"), hex(), hex()}));
  TANDEM_RETURN_IF_ERROR(rules_.Add(escape, {RuleSet::Text("u"), of("Dd"), of("89ABab"), hex(), hex(),
                                             RuleSet::Text("\\u"), of("Dd"), of("CDEFcdef"), hex(), hex()}));
  return escape;
}

absl::StatusOr<size_t> JsonRules::AnyString() {
  if (any_string_.has_value()) return *any_string_;
  TANDEM_ASSIGN_OR_RETURN(const size_t escape, AddEscapes());
  const size_t string = rules_.AddRule();
  const size_t rest = rules_.AddRule();
  any_string_ = string;
  any_rest_ = rest;
  TANDEM_RETURN_IF_ERROR(rules_.Add(string, {RuleSet::Text("\""), RuleSet::Rule(rest)}));
  const RuleSet::Term plain = RuleSet::Characters(PlainCharacters());
  TANDEM_RETURN_IF_ERROR(rules_.Add(rest, {plain, RuleSet::Text("\"")}));
  TANDEM_RETURN_IF_ERROR(
      rules_.Add(rest, {plain, RuleSet::Text("\\"), RuleSet::Rule(escape), RuleSet::Rule(rest)}));
  return string;
}

absl::StatusOr<size_t> JsonRules::AnyNumber(bool whole) {
  std::optional<size_t>& number = numbers_[whole ? 1 : 0];
  if (number.has_value()) return *number;
  // Longer exponents lead beyond what most readers of JSON can hold.
  TANDEM_ASSIGN_OR_RETURN(const Pattern pattern,
                          Pattern::Parse(whole ? "^-?(0|[1-9][0-9]*)$"
                                               : "^-?(0|[1-9][0-9]*)(\\.[0-9]+)?([Ee][+-]?[0-9]{1,2})?$"));
  WorkBudget budget(1'000'000);
  TANDEM_ASSIGN_OR_RETURN(const Language numbers, pattern.ToLanguage(&budget));
  TANDEM_ASSIGN_OR_RETURN(number, TextsOf(numbers));
  return *number;
}

absl::Status JsonRules::AddSpelled(size_t rule, const CodeRanges& characters, const Sequence& rest) {
  CodeRanges plain = Intersection(characters, PlainCharacters());
  if (!plain.empty()) {
    TANDEM_RETURN_IF_ERROR(rules_.Add(rule, Sequence{RuleSet::Character(std::move(plain))} + rest));
  }
  for (const CodeRange& range : Intersection(characters, Complement(PlainCharacters()))) {
    for (uint32_t c = range.first; c <= range.last; ++c) {
      const auto character = static_cast<char>(c);
      const std::string spelled = JsonString(absl::string_view(&character, 1));
      TANDEM_RETURN_IF_ERROR(
          rules_.Add(rule, Sequence{RuleSet::Text(spelled.substr(1, spelled.size() - 2))} + rest));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> JsonRules::TextRules(const Language& texts, bool is_string) {
  // Dates of many members, and the like, have the same rules.
  std::string key = KeyOf(texts, is_string);
  if (const auto known = text_rules_.find(key); known != text_rules_.end()) return known->second;
  // A rule for each state. Where only one character may follow, the text goes on in the same alternative.
  const std::vector<Language::State>& states = texts.states();
  if (std::count_if(states.begin(), states.end(), IsWide) > kMostWide) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too large: in more than ", kMostWide, " states of its automaton nearly any character may follow"));
  }
  std::vector<size_t> in_degree(states.size(), 0);
  for (const Language::State& state : states) {
    for (const Language::Arc& arc : state.arcs) ++in_degree[arc.target];
  }
  const auto is_forced = [&](const Language::State& state) {
    return !state.accepts && state.arcs.size() == 1 && state.arcs[0].range.first == state.arcs[0].range.last;
  };
  std::vector<std::optional<size_t>> rules(states.size());
  std::vector<uint32_t> open;
  const auto rule_of = [&](uint32_t state) {
    if (!rules[state].has_value()) {
      rules[state] = rules_.AddRule();
      open.push_back(state);
    }
    return *rules[state];
  };
  const auto rest_behind = [&](uint32_t state) {
    std::string forced;
    while (is_forced(states[state]) && in_degree[state] <= 1) {
      AppendCodePoint(states[state].arcs[0].range.first, &forced);
      state = states[state].arcs[0].target;
    }
    if (is_string) forced = JsonString(forced).substr(1, JsonString(forced).size() - 2);
    Sequence rest = {RuleSet::Text(std::move(forced))};
    if (states[state].accepts && states[state].arcs.empty()) {
      if (is_string) rest.back().text += "\"";
    } else {
      rest.push_back(RuleSet::Rule(rule_of(state)));
    }
    return rest;
  };
  const size_t start = text_rules_[std::move(key)] = rules_.AddRule();
  TANDEM_RETURN_IF_ERROR(rules_.Add(start, Sequence{RuleSet::Text(is_string ? "\"" : "")} + rest_behind(0)));
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    const size_t rule = *rules[at];
    if (states[at].accepts) TANDEM_RETURN_IF_ERROR(rules_.Add(rule, {RuleSet::Text(is_string ? "\"" : "")}));
    std::map<uint32_t, CodeRanges> by_target;
    for (const Language::Arc& arc : states[at].arcs) by_target[arc.target].push_back(arc.range);
    for (auto& [target, ranges] : by_target) {
      const Sequence rest = rest_behind(target);
      if (is_string) {
        TANDEM_RETURN_IF_ERROR(AddSpelled(rule, ranges, rest));
      } else {
        TANDEM_RETURN_IF_ERROR(rules_.Add(rule, Sequence{RuleSet::Character(ranges)} + rest));
      }
    }
  }
  return start;
}

absl::StatusOr<size_t> JsonRules::StringsOf(const Language& texts) {
  return texts.IsAll() ? AnyString() : TextRules(texts, /*is_string=*/true);
}

absl::StatusOr<size_t> JsonRules::TextsOf(const Language& texts) {
  return TextRules(texts, /*is_string=*/false);
}

absl::Status JsonRules::AddCharacter(size_t rule, const CodeRanges& characters, const Sequence& rest) {
  if (characters != AllCodePoints()) return AddSpelled(rule, characters, rest);
  if (!escape_.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(escape_, AddEscapes());
  }
  TANDEM_RETURN_IF_ERROR(rules_.Add(rule, Sequence{RuleSet::Character(PlainCharacters())} + rest));
  return rules_.Add(rule, Sequence{RuleSet::Text("\\"), RuleSet::Rule(*escape_)} + rest);
}

// At most so many characters, and the closing quote.
absl::StatusOr<size_t> JsonRules::RestOfString(const CodeRanges& characters, size_t most) {
  if (most == kNoLimit && characters == AllCodePoints()) {
    TANDEM_RETURN_IF_ERROR(AnyString().status());
    return *any_rest_;
  }
  const auto [known, added] = rests_.emplace(std::pair(characters, most), 0);
  if (!added) return known->second;
  const size_t rest = known->second = rules_.AddRule();
  if (most <= kMostChained || most == kNoLimit) {
    TANDEM_RETURN_IF_ERROR(rules_.Add(rest, {RuleSet::Text("\"")}));
    if (most == 0) return rest;
    size_t shorter = rest;
    if (most != kNoLimit) {
      TANDEM_ASSIGN_OR_RETURN(shorter, RestOfString(characters, most - 1));
    }
    TANDEM_RETURN_IF_ERROR(AddCharacter(rest, characters, {RuleSet::Rule(shorter)}));
    return rest;
  }
  // Whole blocks, and less than one behind them: each text can be taken apart in one way.
  const size_t num_blocks = most / kBlock;
  if (num_blocks > kMostBlocks)
    return absl::ResourceExhaustedError("too large: expected strings of at most 131,072 characters");
  TANDEM_ASSIGN_OR_RETURN(const size_t block, Block(characters, kBlock));
  TANDEM_ASSIGN_OR_RETURN(const size_t part, RestOfString(characters, kBlock - 1));
  TANDEM_ASSIGN_OR_RETURN(const size_t last, RestOfString(characters, most % kBlock));
  size_t at = rest;
  for (size_t i = 0; i < num_blocks; ++i) {
    const size_t next = i + 1 == num_blocks ? last : rules_.AddRule();
    TANDEM_RETURN_IF_ERROR(rules_.Add(at, {RuleSet::Rule(part)}));
    TANDEM_RETURN_IF_ERROR(rules_.Add(at, {RuleSet::Rule(block), RuleSet::Rule(next)}));
    at = next;
  }
  return rest;
}

// So many characters.
absl::StatusOr<size_t> JsonRules::Block(const CodeRanges& characters, size_t count) {
  const auto [known, added] = blocks_.emplace(std::pair(characters, count), 0);
  if (!added) return known->second;
  const size_t block = known->second = rules_.AddRule();
  Sequence rest;
  if (count > 1) {
    TANDEM_ASSIGN_OR_RETURN(const size_t shorter, Block(characters, count - 1));
    rest = {RuleSet::Rule(shorter)};
  }
  TANDEM_RETURN_IF_ERROR(AddCharacter(block, characters, rest));
  return block;
}

absl::StatusOr<size_t> JsonRules::StringsOf(const CharacterRun& run) {
  const bool any = run.characters == AllCodePoints();
  if (any && run.least == 0 && run.most == kNoLimit) return AnyString();
  if (run.least > kMostBlocks * kBlock)
    return absl::ResourceExhaustedError("too large: expected strings of at most 131,072 characters");
  TANDEM_ASSIGN_OR_RETURN(
      size_t rest, RestOfString(run.characters, run.most == kNoLimit ? kNoLimit : run.most - run.least));
  Sequence string = {RuleSet::Text("\"")};
  if (run.least >= kBlock) {
    TANDEM_ASSIGN_OR_RETURN(const size_t block, Block(run.characters, kBlock));
    string.push_back(RuleSet::Repeated(block, run.least / kBlock, run.least / kBlock));
  }
  for (size_t i = 0; i < run.least % kBlock; ++i) {
    const size_t longer = rules_.AddRule();
    TANDEM_RETURN_IF_ERROR(AddCharacter(longer, run.characters, {RuleSet::Rule(rest)}));
    rest = longer;
  }
  string.push_back(RuleSet::Rule(rest));
  const size_t rule = rules_.AddRule();
  TANDEM_RETURN_IF_ERROR(rules_.Add(rule, std::move(string)));
  return rule;
}

}  // namespace tandem
