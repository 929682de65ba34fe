#pragma once

#include "absl/status/status.h"
#include "common/grammar/schema/schema_document.h"

namespace tandem {

// InvalidArgument, with the path of a subschema as a JSON pointer, if no finite JSON value satisfies a schema
// because one always requires another: an object that requires a member of its own kind, and the like. Looks
// at nothing else; a schema that passes may be wrong in other ways. Linear in the schema.
absl::Status CheckFiniteSchema(const SchemaDocument& schema);

}  // namespace tandem
