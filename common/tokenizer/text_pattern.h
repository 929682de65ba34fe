#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/regex.h"

namespace tandem {

// A half-open range of bytes, and whether it matched or lies between matches.
struct MatchedSpan {
  size_t begin;
  size_t end;
  bool is_match;
};

// A search pattern of tokenizer.json: {"String": ...} or {"Regex": ...}. Immutable.
class TextPattern {
 public:
  static absl::StatusOr<TextPattern> Parse(const JsonView& json);

  // Passes the matches of `text` and the text between them to `on_span`, in order and without gaps. Stops at
  // the first error of `on_span`, without searching the rest.
  absl::Status ForEachSpan(absl::string_view text,
                           absl::FunctionRef<absl::Status(MatchedSpan)> on_span) const;

  // The same as a list.
  absl::StatusOr<std::vector<MatchedSpan>> Cut(absl::string_view text) const;

  // `text` with every match replaced.
  absl::StatusOr<std::string> Replace(absl::string_view text, absl::string_view replacement) const;

 private:
  explicit TextPattern(std::variant<std::string, Regex> pattern) : pattern_(std::move(pattern)) {}

  std::variant<std::string, Regex> pattern_;
};

// Cuts `text` at every occurrence of the non-empty `literal`.
std::vector<MatchedSpan> CutAtLiteral(absl::string_view text, absl::string_view literal);

}  // namespace tandem
