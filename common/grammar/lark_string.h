#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A grammar in XGrammar's EBNF whose texts are JSON strings, quotation marks included: those whose values a
// Lark grammar derives from its rule `start`, in XGrammar's dialect of Lark. Each character has one spelling:
// quotation marks, backslashes and control characters are escaped, in the shortest way that JSON has, and no
// others. Time and memory are unbounded, as for CompileConstraint. InvalidArgument says what is wrong, and
// where, or what cannot be turned into text.
absl::StatusOr<std::string> JsonStringsOfLark(absl::string_view lark);

// Structural tags, as ConstraintOfTags wrote them, in which contents of this type, {"type", "lark"}, are
// replaced by the grammars of JsonStringsOfLark. Errors name the tag.
inline constexpr char kLarkStringType[] = "lark_string";
absl::StatusOr<std::string> WithLarkStrings(absl::string_view structural_tags);

}  // namespace tandem
