#include "common/grammar/finite_texts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/grammar/xgrammar_expressions.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr int32_t kFirstSurrogate = 0xd800;
constexpr int32_t kLastSurrogate = 0xdfff;

// A class of characters without any character.
bool HasNoCharacter(absl::Span<const int32_t> words) {
  if (words.empty()) return true;
  std::vector<std::pair<int32_t, int32_t>> ranges;
  for (size_t i = 1; i + 1 < words.size(); i += 2) ranges.emplace_back(words[i], words[i + 1]);
  if (words[0] == 0) return ranges.empty();
  std::sort(ranges.begin(), ranges.end());
  int64_t next = 0;  // The first code point that no range holds so far.
  for (const auto& [first, last] : ranges) {
    if (first > next) return false;
    next = std::max(next, int64_t{last} + 1);
  }
  return next > kMaxCodePoint;
}

// The same class without the surrogates.
std::vector<int32_t> WithoutSurrogatesIn(absl::Span<const int32_t> words) {
  std::vector<int32_t> kept = {words[0]};
  const auto keep = [&](int32_t first, int32_t last) {
    if (first > last) return;
    kept.push_back(first);
    kept.push_back(last);
  };
  for (size_t i = 1; i + 1 < words.size(); i += 2) {
    const int32_t first = words[i], last = words[i + 1];
    if (words[0] != 0 || last < kFirstSurrogate || first > kLastSurrogate) {
      keep(first, last);
    } else {
      keep(first, kFirstSurrogate - 1);
      keep(kLastSurrogate + 1, last);
    }
  }
  if (words[0] != 0) keep(kFirstSurrogate, kLastSurrogate);
  return kept;
}

// The names of rules that stand in a text.
class NamesIn {
 public:
  explicit NamesIn(absl::string_view text) : is_ebnf_(absl::StrContains(text, "::=")) {
    const auto separates = [&](char c) {
      return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' &&
             !(is_ebnf_ && (c == '-' || c == '.'));
    };
    for (size_t i = 0; i < text.size();) {
      size_t end = i;
      while (end < text.size() && !separates(text[end])) ++end;
      if (end > i) names_.insert(text.substr(i, end - i));
      i = end + 1;
    }
  }
  // What XGrammar calls the rule with which texts begin has that name in EBNF alone.
  absl::string_view root() const { return is_ebnf_ ? "root" : "start"; }
  // XGrammar makes rules of parts of rules, "list_2" of "list". Empty if no rule of the text is meant.
  absl::string_view Known(absl::string_view name) const {
    while (!name.empty() && !names_.contains(name)) {
      const size_t cut = name.rfind('_');
      name = name.substr(0, cut == absl::string_view::npos ? 0 : cut);
    }
    return name;
  }

 private:
  const bool is_ebnf_;
  std::set<absl::string_view> names_;
};

class Grammar {
 public:
  static absl::StatusOr<Grammar> Read(const json& grammar) {
    Grammar read;
    read.words_ = grammar.at("grammar_expr_data").get<std::vector<int32_t>>();
    read.begins_ = grammar.at("grammar_expr_indptr").get<std::vector<size_t>>();
    read.root_ = grammar.at("root_rule_id").get<size_t>();
    for (const json& rule : grammar.at("rules")) {
      read.names_.push_back(rule.at(0).get<std::string>());
      read.bodies_.push_back(rule.at(1).get<size_t>());
    }
    const auto fits = [&](size_t begin) {
      return begin + 2 <= read.words_.size() && read.words_[begin + 1] >= 0 &&
             static_cast<size_t>(read.words_[begin + 1]) <= read.words_.size() - begin - 2;
    };
    const auto is_expression = [&](size_t body) { return body < read.begins_.size(); };
    if (read.root_ >= read.bodies_.size() || !std::all_of(read.begins_.begin(), read.begins_.end(), fits) ||
        !std::all_of(read.bodies_.begin(), read.bodies_.end(), is_expression)) {
      return absl::InternalError("XGrammar's expressions have an unexpected form");
    }
    return read;
  }

  absl::StatusOr<bool> KeepFiniteTexts(absl::string_view source) {
    FindFinite();
    if (!IsFinite(RuleNode(root_))) return Endless(root_, source);
    TANDEM_RETURN_IF_ERROR(CheckTags(source));
    for (size_t expression = 0; expression < begins_.size(); ++expression) {
      if (IsFinite(expression)) Prune(expression);
    }
    EmptyBareRules();
    return changed_;
  }
  // What a class has instead of its words stands behind all others.
  bool DropSurrogates() {
    for (size_t& begin : begins_) {
      const int32_t kind = words_[begin];
      if ((kind != kCharacterClass && kind != kCharacterClassStar) || words_[begin + 1] == 0) continue;
      const absl::Span<const int32_t> words =
          absl::MakeConstSpan(words_).subspan(begin + 2, static_cast<size_t>(words_[begin + 1]));
      const std::vector<int32_t> kept = WithoutSurrogatesIn(words);
      if (kept == words) continue;
      begin = words_.size();
      words_.push_back(kind);
      words_.push_back(static_cast<int32_t>(kept.size()));
      words_.insert(words_.end(), kept.begin(), kept.end());
      changed_ = true;
    }
    return changed_;
  }
  const std::vector<int32_t>& words() const { return words_; }
  const std::vector<size_t>& begins() const { return begins_; }

 private:
  int32_t KindOf(size_t expression) const { return words_[begins_[expression]]; }
  absl::Span<int32_t> WordsOf(size_t expression) {
    const size_t begin = begins_[expression];
    return absl::MakeSpan(words_).subspan(begin + 2, static_cast<size_t>(words_[begin + 1]));
  }
  // Expressions are nodes by their numbers, and rules follow them.
  size_t RuleNode(size_t rule) const { return begins_.size() + rule; }
  bool IsFinite(size_t node) const { return missing_[node] == 0; }

  // The nodes of which a node needs all or, of choices, one.
  std::vector<size_t> NeededBy(size_t expression) {
    const absl::Span<const int32_t> words = WordsOf(expression);
    switch (KindOf(expression)) {
      case kSequence:
      case kChoices:
        return {words.begin(), words.end()};
      case kRule:
        return {RuleNode(static_cast<size_t>(words[0]))};
      case kRepeat:
        if (words[1] > 0) return {RuleNode(static_cast<size_t>(words[0]))};
        return {};
      default:
        return {};
    }
  }

  // Whether an expression has no text whatever the others have.
  bool IsHopeless(size_t expression) {
    switch (KindOf(expression)) {
      case kCharacterClass:
        return HasNoCharacter(WordsOf(expression));
      case kChoices:
      case kToken:
        return WordsOf(expression).empty();
      default:
        return false;
    }
  }

  // Of every node, how many others it still waits for until a finite text follows from it. Linear in the
  // grammar.
  void FindFinite() {
    const size_t num_nodes = begins_.size() + bodies_.size();
    missing_.assign(num_nodes, 0);
    std::vector<std::vector<size_t>> waiting(num_nodes);  // Who waits for a node.
    std::vector<size_t> finite;
    for (size_t node = 0; node < num_nodes; ++node) {
      const bool is_rule = node >= begins_.size();
      const std::vector<size_t> needed =
          is_rule ? std::vector<size_t>{bodies_[node - begins_.size()]} : NeededBy(node);
      for (const size_t other : needed) waiting[other].push_back(node);
      const bool needs_one = !is_rule && KindOf(node) == kChoices;
      missing_[node] = needs_one ? std::min(needed.size(), size_t{1}) : needed.size();
      if (!is_rule && IsHopeless(node)) missing_[node] = num_nodes + 1;  // More than can be found.
      if (missing_[node] == 0) finite.push_back(node);
    }
    while (!finite.empty()) {
      const size_t node = finite.back();
      finite.pop_back();
      for (const size_t waiter : waiting[node]) {
        if (missing_[waiter] > 0 && --missing_[waiter] == 0) finite.push_back(waiter);
      }
    }
  }

  // Names the rule on which an endless one gets stuck, or the last one on the way that the source names.
  absl::Status Endless(size_t rule, absl::string_view source) {
    const NamesIn names(source);
    std::string name(names.root());
    std::vector<bool> seen(bodies_.size(), false);
    size_t node = RuleNode(rule);
    for (;;) {
      const bool is_rule = node >= begins_.size();
      if (is_rule) {
        rule = node - begins_.size();
        const absl::string_view known = rule == root_ ? names.root() : names.Known(names_[rule]);
        if (!known.empty()) name = PrintableText(known);
        if (seen[rule]) {
          return absl::InvalidArgumentError(absl::StrCat(
              "rule ", name, ": it always leads to itself again, so that no finite text follows from it"));
        }
        seen[rule] = true;
      }
      const std::vector<size_t> needed = is_rule ? std::vector<size_t>{bodies_[rule]} : NeededBy(node);
      const auto stuck =
          std::find_if(needed.begin(), needed.end(), [&](size_t other) { return !IsFinite(other); });
      if (stuck == needed.end()) {
        return absl::InvalidArgumentError(absl::StrCat("rule ", name, ": no text follows from it"));
      }
      node = *stuck;
    }
  }

  // What follows a tag cannot be taken out: the tag is free text otherwise.
  absl::Status CheckTags(absl::string_view source) {
    for (size_t expression = 0; expression < begins_.size(); ++expression) {
      if (KindOf(expression) != kTagDispatch) continue;
      const absl::Span<const int32_t> words = WordsOf(expression);
      for (size_t i = 1; i + kTagDispatchMore < words.size(); i += 2) {
        const auto rule = static_cast<size_t>(words[i]);
        if (!IsFinite(RuleNode(rule))) return Endless(rule, source);
      }
    }
    return absl::OkStatus();
  }

  // Takes endless nodes out of an expression that is not.
  void Prune(size_t expression) {
    const size_t begin = begins_[expression];
    const absl::Span<int32_t> words = WordsOf(expression);
    const int32_t kind = KindOf(expression);
    const auto never = [&](int32_t node) { return !IsFinite(static_cast<size_t>(node)); };
    if (kind == kChoices) {
      Keep(begin, std::remove_if(words.begin(), words.end(), never) - words.begin());
    } else if (kind == kSequence) {
      const auto no_times = [&](int32_t node) { return IsRepeatOfEndless(static_cast<size_t>(node)); };
      Keep(begin, std::remove_if(words.begin(), words.end(), no_times) - words.begin());
      if (words_[begin + 1] == 0) words_[begin] = kEmpty;
    } else if (IsRepeatOfEndless(expression)) {
      words_[begin] = kEmpty;
      Keep(begin, 0);
    }
  }

  // Of every node, whether a character can follow from it.
  std::vector<bool> HaveCharacters() {
    const size_t num_nodes = begins_.size() + bodies_.size();
    std::vector<bool> have(num_nodes, false);
    std::vector<std::vector<size_t>> parts_of(num_nodes);  // Of which nodes a node is a part.
    std::vector<size_t> pending;
    for (size_t node = 0; node < num_nodes; ++node) {
      const bool is_rule = node >= begins_.size();
      const int32_t kind = is_rule ? kRule : KindOf(node);
      if (is_rule) {
        parts_of[bodies_[node - begins_.size()]].push_back(node);
      } else if (kind == kSequence || kind == kChoices) {
        for (const int32_t part : WordsOf(node)) parts_of[static_cast<size_t>(part)].push_back(node);
      } else if (kind == kRule || kind == kRepeat) {
        parts_of[RuleNode(static_cast<size_t>(WordsOf(node).front()))].push_back(node);
      } else if (kind != kEmpty && !WordsOf(node).empty()) {
        have[node] = true;
        pending.push_back(node);
      }
    }
    while (!pending.empty()) {
      const size_t node = pending.back();
      pending.pop_back();
      for (const size_t whole : parts_of[node]) {
        if (!have[whole]) pending.push_back(whole);
        have[whole] = true;
      }
    }
    return have;
  }

  // Rules without any character, such as repeats of one another in a circle, become the empty text at once,
  // and so do endless ones, which nothing refers to any more. XGrammar would follow some circles for ever.
  void EmptyBareRules() {
    const std::vector<bool> have = HaveCharacters();
    for (size_t rule = 0; rule < bodies_.size(); ++rule) {
      const size_t body = bodies_[rule];
      if ((have[body] && IsFinite(body)) || KindOf(body) != kChoices || WordsOf(body).empty()) continue;
      const size_t begin = begins_[static_cast<size_t>(WordsOf(body).front())];
      changed_ = changed_ || words_[begin] != kEmpty;
      words_[begin] = kEmpty;
      words_[begin + 1] = 0;
      Keep(begins_[body], 1);
    }
  }

  bool IsRepeatOfEndless(size_t expression) {
    return KindOf(expression) == kRepeat &&
           !IsFinite(RuleNode(static_cast<size_t>(WordsOf(expression).front())));
  }
  void Keep(size_t begin, ptrdiff_t count) {
    changed_ = changed_ || count != words_[begin + 1];
    words_[begin + 1] = static_cast<int32_t>(count);
  }

  std::vector<int32_t> words_;
  std::vector<size_t> begins_;  // Of expressions, in words_.
  std::vector<std::string> names_;
  std::vector<size_t> bodies_;  // Of rules: an expression.
  size_t root_ = 0;
  std::vector<size_t> missing_;
  bool changed_ = false;
};

}  // namespace

absl::StatusOr<bool> KeepFiniteTexts(absl::string_view source, json* grammar) {
  TANDEM_ASSIGN_OR_RETURN(Grammar read, Grammar::Read(*grammar));
  TANDEM_ASSIGN_OR_RETURN(const bool changed, read.KeepFiniteTexts(source));
  if (changed) (*grammar)["grammar_expr_data"] = read.words();
  return changed;
}

absl::StatusOr<bool> DropSurrogates(json* grammar) {
  TANDEM_ASSIGN_OR_RETURN(Grammar read, Grammar::Read(*grammar));
  if (!read.DropSurrogates()) return false;
  (*grammar)["grammar_expr_data"] = read.words();
  (*grammar)["grammar_expr_indptr"] = read.begins();
  return true;
}

}  // namespace tandem
