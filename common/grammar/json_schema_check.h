#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Checks that outputs can be constrained to the whole JSON schema. Keywords that the compiler would ignore
// are refused, because an output that violates the schema is worse than none. Known keywords are
//
//   $ref within the schema, alone; const; enum; anyOf; oneOf; allOf of one schema
//   type, of one or several types, with what belongs to it:
//     integer, number  minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (of integers)
//     string           minLength, maxLength, pattern, format
//     array            items, prefixItems, unevaluatedItems, minItems, maxItems
//     object           properties, required, additionalProperties, unevaluatedProperties, patternProperties,
//                      propertyNames, minProperties, maxProperties
//
// and annotations. InvalidArgument says where, as "byte 17: ..." or by JSON pointer, "#/properties/a/not:
// ...".
absl::Status CheckJsonSchema(absl::string_view text, size_t max_depth);

}  // namespace tandem
