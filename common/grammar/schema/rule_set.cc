#include "common/grammar/schema/rule_set.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

using TermKind = RuleSet::Term::Kind;

constexpr size_t kMostBytes = 4 << 20;
constexpr size_t kMostRules = 100'000;

// As strings and classes of XGrammar's EBNF have it: escapes of a fixed length, so that nothing that follows
// can become part of them.
void AppendCharacter(uint32_t c, std::string* ebnf) {
  if (c < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(c))) {
    ebnf->push_back(static_cast<char>(c));
  } else if (c <= 0xffff) {
    absl::StrAppendFormat(ebnf, "\\u%04x", c);
  } else {
    absl::StrAppendFormat(ebnf, "\\U%08x", c);
  }
}

void AppendClass(const CodeRanges& ranges, std::string* ebnf) {
  ebnf->push_back('[');
  for (const CodeRange& range : ranges) {
    AppendCharacter(range.first, ebnf);
    if (range.last == range.first) continue;
    ebnf->push_back('-');
    AppendCharacter(range.last, ebnf);
  }
  ebnf->push_back(']');
}

void AppendText(absl::string_view text, std::string* ebnf) {
  ebnf->push_back('"');
  while (!text.empty()) {
    const uint32_t c = TakeCodePoint(&text);
    if (c == kLastCodePoint) {
      // As a character of its own: in strings of structural tags it stands for marks (call_marks.h).
      ebnf->append("\" ");
      AppendClass({{c, c}}, ebnf);
      ebnf->append(" \"");
    } else if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
      ebnf->push_back(static_cast<char>(c));
    } else {
      AppendCharacter(c, ebnf);
    }
  }
  ebnf->push_back('"');
}

std::string NameOf(size_t rule) {
  return rule == 0 ? "root" : absl::StrCat("r", rule);
}

void AppendTerm(const RuleSet::Term& term, std::string* ebnf) {
  switch (term.kind) {
    case TermKind::kText:
      return AppendText(term.text, ebnf);
    case TermKind::kCharacter:
      return AppendClass(term.characters, ebnf);
    case TermKind::kCharacters:
      AppendClass(term.characters, ebnf);
      ebnf->push_back('*');
      return;
    case TermKind::kRule:
      break;
  }
  absl::StrAppend(ebnf, NameOf(term.rule));
  if (term.least == 1 && term.most == 1) return;
  absl::StrAppend(ebnf, "{", term.least, ",");
  if (term.most != kNoLimit) absl::StrAppend(ebnf, term.most);
  ebnf->push_back('}');
}

}  // namespace

std::string TextInEbnf(absl::string_view text) {
  std::string ebnf;
  AppendText(text, &ebnf);
  return ebnf;
}

std::string ClassInEbnf(const CodeRanges& characters) {
  std::string ebnf;
  AppendClass(characters, &ebnf);
  return ebnf;
}

absl::Status RuleSet::Add(size_t rule, Sequence alternative) {
  bytes_ += 16;
  for (const Term& term : alternative) bytes_ += 16 + 2 * term.text.size() + 16 * term.characters.size();
  if (bytes_ > kMostBytes || rules_.size() > kMostRules) {
    return absl::ResourceExhaustedError("too large: its grammar has more than 4 MiB");
  }
  rules_[rule].push_back(std::move(alternative));
  return absl::OkStatus();
}

std::vector<bool> RuleSet::LeadToText() const {
  // Alternatives wait for as many rules as they need; where none is left, their rule leads to a text.
  std::vector<bool> lead(rules_.size(), false);
  std::vector<std::vector<std::pair<size_t, size_t>>> waiting(rules_.size());
  std::vector<std::vector<size_t>> missing(rules_.size());
  std::vector<size_t> found;
  const auto mark = [&](size_t rule) {
    if (lead[rule]) return;
    lead[rule] = true;
    found.push_back(rule);
  };
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    for (size_t i = 0; i < rules_[rule].size(); ++i) {
      size_t count = 0;
      for (const Term& term : rules_[rule][i]) {
        if (term.kind != TermKind::kRule || term.least == 0) continue;
        waiting[term.rule].emplace_back(rule, i);
        ++count;
      }
      missing[rule].push_back(count);
      if (count == 0) mark(rule);
    }
  }
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto& [rule, alternative] : waiting[found[i]]) {
      if (--missing[rule][alternative] == 0) mark(rule);
    }
  }
  return lead;
}

absl::StatusOr<std::string> RuleSet::ToEbnf() const {
  const std::vector<bool> lead = LeadToText();
  if (!lead[0]) return absl::InvalidArgumentError("#: no value of finite length is valid by this schema");
  // A repetition that may be left out is, if what it repeats leads nowhere.
  const auto is_dead = [&](const Term& term) { return term.kind == TermKind::kRule && !lead[term.rule]; };
  std::vector<size_t> used = {0};
  std::vector<bool> seen(rules_.size(), false);
  seen[0] = true;
  std::string ebnf;
  for (size_t i = 0; i < used.size(); ++i) {
    absl::StrAppend(&ebnf, NameOf(used[i]), " ::= ");
    bool first = true;
    for (const Sequence& alternative : rules_[used[i]]) {
      const bool dead = std::any_of(alternative.begin(), alternative.end(),
                                    [&](const Term& term) { return is_dead(term) && term.least > 0; });
      if (dead) continue;
      if (!std::exchange(first, false)) ebnf += " | ";
      bool empty = true;
      for (const Term& term : alternative) {
        if (is_dead(term) || (term.kind == TermKind::kText && term.text.empty())) continue;
        if (term.kind == TermKind::kRule && term.most == 0) continue;
        if (!std::exchange(empty, false)) ebnf.push_back(' ');
        AppendTerm(term, &ebnf);
        if (term.kind != TermKind::kRule || seen[term.rule]) continue;
        seen[term.rule] = true;
        used.push_back(term.rule);
      }
      if (empty) ebnf += "\"\"";
    }
    ebnf.push_back('\n');
  }
  return ebnf;
}

}  // namespace tandem
