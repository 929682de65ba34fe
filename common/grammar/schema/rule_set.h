#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/language.h"

namespace tandem {

// The rules of a grammar while it is made. Rules are numbered; rule 0 is the root.
class RuleSet {
 public:
  // A part of an alternative.
  struct Term {
    enum class Kind : uint8_t { kText, kCharacter, kCharacters, kRule };
    Kind kind = Kind::kText;
    std::string text;       // kText: these bytes, in UTF-8.
    CodeRanges characters;  // kCharacter: one of these; kCharacters: any number of them.
    size_t rule = 0;        // kRule: between `least` and `most` times.
    size_t least = 1;
    size_t most = 1;
  };
  // One after the other. None is the empty text.
  using Sequence = std::vector<Term>;

  static Term Text(std::string text) {
    return {.kind = Term::Kind::kText, .text = std::move(text), .characters = {}};
  }
  static Term Character(CodeRanges characters) {
    return {.kind = Term::Kind::kCharacter, .text = {}, .characters = std::move(characters)};
  }
  static Term Characters(CodeRanges characters) {
    return {.kind = Term::Kind::kCharacters, .text = {}, .characters = std::move(characters)};
  }
  static Term Rule(size_t rule) {
    return {.kind = Term::Kind::kRule, .text = {}, .characters = {}, .rule = rule};
  }
  static Term Repeated(size_t rule, size_t least, size_t most) {
    return {
        .kind = Term::Kind::kRule, .text = {}, .characters = {}, .rule = rule, .least = least, .most = most};
  }

  size_t AddRule() {
    rules_.emplace_back();
    return rules_.size() - 1;
  }
  // ResourceExhausted if the grammar gets too large.
  absl::Status Add(size_t rule, Sequence alternative);

  // In XGrammar's EBNF, without what leads to no text of finite length. InvalidArgument if nothing does.
  absl::StatusOr<std::string> ToEbnf() const;

 private:
  using Alternatives = std::vector<Sequence>;

  std::vector<bool> LeadToText() const;

  std::vector<Alternatives> rules_;
  size_t bytes_ = 0;
};

// A string and a class of the same EBNF.
std::string TextInEbnf(absl::string_view text);
std::string ClassInEbnf(const CodeRanges& characters);

}  // namespace tandem
