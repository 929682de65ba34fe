#pragma once

#include "absl/status/statusor.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "tandem/v1/types.pb.h"

namespace tandem {

// A request's constraint, ready to compile. InvalidArgument names the field and the place in it.
absl::StatusOr<ConstraintSource> ConstraintFromProto(const v1::Constraint& proto,
                                                     const ConstraintLimits& limits);

}  // namespace tandem
