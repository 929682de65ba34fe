#include "common/grammar/schema/regex_grammar.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/schema/json_rules.h"
#include "common/grammar/schema/language.h"
#include "common/grammar/schema/pattern.h"
#include "common/grammar/schema/rule_set.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {
namespace {

using Node = Pattern::Node;
using NodeKind = Node::Kind;

constexpr size_t kMaxGrammarBytes = 4 << 20;
// About a second.
constexpr int64_t kMaxLookAheadWork = 100'000'000;

// The last code point is a class in any case: in texts it stands for marks (call_marks.h).
bool IsOneCharacter(const Node& node) {
  return node.kind == NodeKind::kCharacter && node.characters.size() == 1 &&
         node.characters[0].first == node.characters[0].last && node.characters[0].first != kLastCodePoint;
}

bool TakesNothing(const Node& node) {
  return node.kind == NodeKind::kSequence && node.children.empty();
}

// Whether no text matches.
bool IsHopeless(const Node& node) {
  const auto all = [&] { return std::all_of(node.children.begin(), node.children.end(), IsHopeless); };
  const auto any = [&] { return std::any_of(node.children.begin(), node.children.end(), IsHopeless); };
  switch (node.kind) {
    case NodeKind::kCharacter:
      return node.characters.empty();
    case NodeKind::kSequence:
      return any();
    case NodeKind::kChoice:
      return all();
    case NodeKind::kRepeat:
      return node.least > 0 && any();
    case NodeKind::kBegin:
    case NodeKind::kEnd:
      break;
  }
  return false;
}

class EbnfWriter {
 public:
  // `at_begin`, `at_end`: whether the text begins in front of the node, and ends behind it.
  absl::Status Add(const Node& node, bool at_begin, bool at_end) {
    if (ebnf_.size() > kMaxGrammarBytes)
      return absl::InvalidArgumentError("too large: its grammar has more than 4 MiB");
    switch (node.kind) {
      case NodeKind::kCharacter:
        AddCharacter(node);
        return absl::OkStatus();
      case NodeKind::kSequence:
        return AddSequence(node, at_begin, at_end);
      case NodeKind::kChoice:
        for (size_t i = 0; i < node.children.size(); ++i) {
          ebnf_ += i == 0 ? "(" : " | ";
          TANDEM_RETURN_IF_ERROR(Add(node.children[i], at_begin, at_end));
        }
        ebnf_ += ")";
        return absl::OkStatus();
      case NodeKind::kRepeat:
        return AddRepeat(node);
      case NodeKind::kBegin:
      case NodeKind::kEnd:
        break;
    }
    if (node.kind == NodeKind::kBegin ? !at_begin : !at_end) {
      return absl::InvalidArgumentError(
          "expected ^ at the beginning of the expression or of one of its branches, and $ at the end of one");
    }
    ebnf_ += "\"\"";
    return absl::OkStatus();
  }

  std::string Take() && { return std::move(ebnf_); }

 private:
  void AddCharacter(const Node& node) {
    if (IsOneCharacter(node)) {
      std::string text;
      AppendCodePoint(node.characters[0].first, &text);
      ebnf_ += TextInEbnf(text);
    } else {
      // Without any character no text follows from it.
      ebnf_ += node.characters.empty() ? "[^\\u0000-\\U0010ffff]" : ClassInEbnf(node.characters);
    }
  }

  absl::Status AddSequence(const Node& sequence, bool at_begin, bool at_end) {
    size_t first = 0;
    size_t last = sequence.children.size();
    while (at_begin && first < last && sequence.children[first].kind == NodeKind::kBegin) ++first;
    while (at_end && first < last && sequence.children[last - 1].kind == NodeKind::kEnd) --last;
    if (first == last) ebnf_ += "\"\"";
    for (size_t i = first; i < last; ++i) {
      if (i > first) ebnf_.push_back(' ');
      // What is certain is one text.
      std::string text;
      for (; i < last && IsOneCharacter(sequence.children[i]); ++i)
        AppendCodePoint(sequence.children[i].characters[0].first, &text);
      if (!text.empty()) {
        ebnf_ += TextInEbnf(text);
        --i;
        continue;
      }
      TANDEM_RETURN_IF_ERROR(Add(sequence.children[i], at_begin && i == first, at_end && i + 1 == last));
    }
    return absl::OkStatus();
  }

  absl::Status AddRepeat(const Node& repeat) {
    const Node& child = repeat.children[0];
    if (repeat.most == 0 || TakesNothing(child)) {
      ebnf_ += "\"\"";
      return absl::OkStatus();
    }
    const bool bare = child.kind == NodeKind::kCharacter || child.kind == NodeKind::kChoice;
    if (!bare) ebnf_ += "(";
    TANDEM_RETURN_IF_ERROR(Add(child, /*at_begin=*/false, /*at_end=*/false));
    if (!bare) ebnf_ += ")";
    if (repeat.most == kNoLimit && repeat.least <= 1) {
      ebnf_ += repeat.least == 0 ? "*" : "+";
    } else if (repeat.least == 0 && repeat.most == 1) {
      ebnf_ += "?";
    } else {
      absl::StrAppend(&ebnf_, "{", repeat.least, ",",
                      repeat.most == kNoLimit ? "" : absl::StrCat(repeat.most), "}");
    }
    return absl::OkStatus();
  }

  std::string ebnf_;
};

// What stands in front of it holds for the text that it matches: that takes an automaton for both.
absl::StatusOr<std::string> GrammarWithLookAhead(const std::string& regex) {
  TANDEM_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::Parse(regex));
  WorkBudget budget(kMaxLookAheadWork);
  const absl::StatusOr<Language> texts = pattern.ToLanguage(&budget);
  if (!texts.ok()) return absl::InvalidArgumentError(texts.status().message());
  if (texts->IsEmpty()) return absl::InvalidArgumentError("no text matches");
  RuleSet rules;
  const size_t root = rules.AddRule();
  TANDEM_ASSIGN_OR_RETURN(const size_t rule, JsonRules(&rules, JsonLayout::kCompact).TextsOf(*texts));
  TANDEM_RETURN_IF_ERROR(rules.Add(root, {RuleSet::Rule(rule)}));
  return rules.ToEbnf();
}

}  // namespace

absl::StatusOr<std::string> GrammarOfRegex(absl::string_view regex) {
  absl::string_view rest = regex;
  absl::ConsumePrefix(&rest, "^");
  if (absl::StartsWith(rest, "(?=") || absl::StartsWith(rest, "(?!")) {
    absl::StatusOr<std::string> grammar = GrammarWithLookAhead(absl::StrCat("^", rest, "$"));
    if (grammar.ok()) return grammar;
    return absl::InvalidArgumentError(grammar.status().message());
  }
  TANDEM_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::Parse(regex));
  if (IsHopeless(pattern.node())) return absl::InvalidArgumentError("no text matches");
  EbnfWriter writer;
  TANDEM_RETURN_IF_ERROR(writer.Add(pattern.node(), /*at_begin=*/true, /*at_end=*/true));
  return absl::StrCat("root ::= ", std::move(writer).Take(), "\n");
}

}  // namespace tandem
