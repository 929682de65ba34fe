#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The texts that an expression matches from their beginning to their end, as a grammar in XGrammar's EBNF. It
// is read like a pattern of a schema (pattern.h); `^` and `$` may stand where such a text begins and ends, in
// branches as well. Counts stay counts: no automaton is made, except where look ahead needs one.
//
// InvalidArgument names the byte: "byte 3: ...".
absl::StatusOr<std::string> GrammarOfRegex(absl::string_view regex);

}  // namespace tandem
