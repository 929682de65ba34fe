#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "tandem/v1/verifier.pb.h"
#include "verifier/rpc/request_wire.h"

namespace tandem {

// The constraint of a Verifier.Generate call, ready to compile; nullopt if it has none. InvalidArgument names
// the field and the place in it, or the option that cannot be combined with a constraint.
absl::StatusOr<std::optional<ConstraintSource>> ConstraintFromProto(const v1::VerifierGenerateRequest& proto,
                                                                    const ConstraintLimits& limits);

// Turns the compiler's error into the answer to the call.
absl::Status ConstraintError(const absl::Status& compiled);

// Applies the constraint to the session, starting at the end of its output so far.
absl::Status Constrain(std::shared_ptr<const CompiledConstraint> constraint, const ServedTarget& target,
                       SessionRequest* session);

}  // namespace tandem
