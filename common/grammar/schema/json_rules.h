#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/json_value.h"
#include "common/grammar/schema/language.h"
#include "common/grammar/schema/pattern.h"
#include "common/grammar/schema/rule_set.h"

namespace tandem {

// The layout of JSON.
enum class JsonLayout : uint8_t {
  kCompact,  // One blank after each comma and colon, no other white space.
  kFree,     // Between any two tokens nothing, a blank, or one or two line ends and an indentation.
};

// Rules for JSON as such: any value, and strings and numbers out of a language.
class JsonRules {
 public:
  using Sequence = RuleSet::Sequence;

  // `rules` must outlive this.
  JsonRules(RuleSet* rules, JsonLayout layout) : rules_(*rules), layout_(layout) {}

  // Terms.
  Sequence Open(char bracket);   // "{" or "[" and the space behind it.
  Sequence Close(char bracket);  // The other ones and the space before them.
  Sequence Comma();
  Sequence Colon();
  // A value as it stands.
  Sequence Value(const JsonValue& value);

  // Rules.
  absl::StatusOr<size_t> AnyValue();
  absl::StatusOr<size_t> AnyString();
  absl::StatusOr<size_t> AnyNumber(bool whole);
  // Strings, in quotes, of a language: characters stand for themselves unless JSON demands an escape.
  absl::StatusOr<size_t> StringsOf(const Language& texts);
  absl::StatusOr<size_t> StringsOf(const CharacterRun& run);
  // The texts of a language as they stand, such as numbers.
  absl::StatusOr<size_t> TextsOf(const Language& texts);

 private:
  Sequence Between(absl::string_view token, absl::string_view compact);
  size_t Space();
  absl::StatusOr<size_t> AddEscapes();
  absl::Status AddCharacter(size_t rule, const CodeRanges& characters, const Sequence& rest);
  absl::StatusOr<size_t> RestOfString(const CodeRanges& characters, size_t most);
  absl::StatusOr<size_t> Block(const CodeRanges& characters, size_t count);
  absl::StatusOr<size_t> TextRules(const Language& texts, bool is_string);
  absl::Status AddSpelled(size_t rule, const CodeRanges& characters, const Sequence& rest);

  RuleSet& rules_;
  const JsonLayout layout_;
  std::optional<size_t> space_;
  std::optional<size_t> any_value_;
  std::optional<size_t> any_string_;
  std::optional<size_t> any_rest_;  // Of any string, behind its opening quote.
  std::optional<size_t> escape_;
  // By what may come and how often.
  std::map<std::pair<CodeRanges, size_t>, size_t> rests_;
  std::map<std::pair<CodeRanges, size_t>, size_t> blocks_;
  std::optional<size_t> numbers_[2];
  std::map<std::string, size_t> text_rules_;  // By their automata.
};

RuleSet::Sequence operator+(RuleSet::Sequence left, const RuleSet::Sequence& right);

}  // namespace tandem
