#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Takes out of a grammar, in XGrammar's JSON, the branches from which no finite text follows, such as those
// of a rule that always refers to itself: an output that entered one could never end. The grammar's texts
// stay the same. True if there were any. InvalidArgument names a rule if then nothing is left, or if a
// structural tag's content has no text: one that `source` names, from which the grammar was read, in EBNF, in
// Lark's form or within structural tags.
absl::StatusOr<bool> KeepFiniteTexts(absl::string_view source, nlohmann::json* grammar);

// Takes the surrogates, which are no characters, out of the classes of a grammar, in XGrammar's JSON: with
// them, outputs would not be UTF-8. True if there were any.
absl::StatusOr<bool> DropSurrogates(nlohmann::json* grammar);

}  // namespace tandem
