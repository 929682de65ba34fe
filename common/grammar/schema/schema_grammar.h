#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/json_rules.h"

namespace tandem {

// A grammar in XGrammar's EBNF, its root the rule `root`, of JSON texts. Each is valid by the schema in all
// that JSON Schema 2020-12 says of it, has no key twice, and has its members in the order in which the schema
// lists them. docs/reference/structured.md has what schemas may hold, and which of the valid texts are left
// out.
//
// Time and memory are bounded whatever the schema. Errors are InvalidArgument with the place as a JSON
// pointer:
// "#/properties/a/format: not supported, expected one of ...".
absl::StatusOr<std::string> GrammarOfSchema(absl::string_view schema, JsonLayout layout, size_t max_depth);

}  // namespace tandem
