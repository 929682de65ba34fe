#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {

// A made-up expression of a grammar or of a pattern, with plain means to tell its texts.
struct Expression {
  enum class Kind { kText, kClass, kRule, kSequence, kChoice, kRepeat };
  static constexpr int kAnyNumber = -1;

  Kind kind = Kind::kText;
  std::string text;  // kText; kClass: the shorthand that it is, if it is one.
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // kClass.
  bool negated = false;
  size_t rule = 0;                // kRule.
  int least = 0, most = 0;        // kRepeat, of the only part.
  std::vector<Expression> parts;  // kSequence, kChoice, kRepeat.
};

// Expressions that may refer to each other by number. The first is the one that counts.
using Rules = std::vector<Expression>;

// `num_rules`: that it may refer to.
Expression MakeExpression(InputReader& reader, size_t num_rules, int depth);

// The rules from which a finite text follows.
std::vector<bool> FiniteRules(const Rules& rules);
// Whether the first rule has this text. Tries all readings.
bool HasText(const Rules& rules, absl::string_view text);
// A text of the first rule, which is finite.
std::string SampleText(const Rules& rules, InputReader& reader);

std::string PrintGrammar(const Rules& rules);
std::string PrintPattern(const Expression& expression);

// The first character of a text; its length is 0 where there is none.
std::pair<uint32_t, size_t> FirstCharacter(absl::string_view text);
std::string Utf8(uint32_t code);

}  // namespace tandem::fuzz
