#pragma once

#include "absl/status/statusor.h"
#include "common/grammar/compiled.h"

namespace tandem {

// `source` with grammars in the place of its regular expression or of its schemas, its own or those of its
// structural tags. JSON within tags has the free layout. InvalidArgument with the place of a schema that
// cannot be followed exactly: "tags[2].content: #/properties/a/format: not supported, ...".
absl::StatusOr<ConstraintSource> WithGrammars(const ConstraintSource& source);

}  // namespace tandem
