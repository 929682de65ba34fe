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
// are written for Oniguruma's Ruby syntax; what that reads differently from PCRE2 is translated, and
// constructs that cannot be are refused. Immutable, safe to share between threads.
//
// Character properties are those of Unicode 16, also where PCRE2's tables are older: newer characters are
// looked at as older ones that have the same (unicode_tables.h).
class Regex {
 public:
  // InvalidArgument for a malformed pattern, Unimplemented, by name, for what cannot be translated.
  static absl::StatusOr<Regex> Compile(absl::string_view oniguruma_pattern);

  // Calls `on_match(begin, end)` for each match from left to right; matches do not overlap, and an empty
  // match is not reported where the previous one ended. Ends early with the first error of `on_match`: what
  // lies behind is not searched. `text` must be well-formed UTF-8. ResourceExhausted when the pattern
  // backtracks beyond the match limit.
  absl::Status ForEachMatch(absl::string_view text,
                            absl::FunctionRef<absl::Status(size_t, size_t)> on_match) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tandem
