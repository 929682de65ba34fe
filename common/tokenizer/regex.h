#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A regular expression of a tokenizer file, matched by PCRE2 with just-in-time compilation. Tokenizer files
// use Oniguruma's Ruby syntax; constructs that PCRE2 reads differently are translated, and those that cannot
// be are refused. Immutable, so thread-safe.
//
// Character properties are those of Unicode 16, even if PCRE2's tables are older: newer characters are
// replaced by older ones with the same properties (unicode_tables.h).
class Regex {
 public:
  // InvalidArgument for a malformed pattern; Unimplemented, with its name, for a construct that cannot be
  // translated.
  static absl::StatusOr<Regex> Compile(absl::string_view oniguruma_pattern);

  // Calls `on_match(begin, end)` for each match from left to right; matches do not overlap, and an empty
  // match is not reported where the previous one ended. Stops at the first error of `on_match`, without
  // searching the rest. `text` must be well-formed UTF-8. ResourceExhausted when the pattern backtracks
  // beyond the match limit.
  absl::Status ForEachMatch(absl::string_view text,
                            absl::FunctionRef<absl::Status(size_t, size_t)> on_match) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tandem
