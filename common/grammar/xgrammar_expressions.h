#pragma once

#include <cstddef>
#include <cstdint>

// XGrammar's grammars as its serialised form has them.
namespace tandem {

// Kinds of expressions. Each is in the list of words as kind, number of words that follow, words.
enum XGrammarExpression : int32_t {
  kByteString = 0,
  kCharacterClass = 1,      // Whether it is negated, then first and last code points of ranges.
  kCharacterClassStar = 2,  // The same: any number of its characters.
  kEmpty = 3,
  kRule = 4,         // A rule.
  kSequence = 5,     // Expressions.
  kChoices = 6,      // Expressions.
  kTagDispatch = 7,  // Pairs of an expression, the tag, and a rule; two more words.
  kRepeat = 8,       // A rule, least and most times.
  kToken = 9,        // Tokens.
};
inline constexpr size_t kTagDispatchMore = 2;

inline constexpr int32_t kMaxCodePoint = 0x10ffff;

}  // namespace tandem
