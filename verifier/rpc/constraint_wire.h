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

// The constraint of a Verifier.Generate call, ready to be compiled; nothing if it has none. InvalidArgument
// names the field and the place in it, or says what does not go together with a constraint.
absl::StatusOr<std::optional<ConstraintSource>> ConstraintFromProto(const v1::VerifierGenerateRequest& proto,
                                                                    const ConstraintLimits& limits);

// What the compiler said of it, as an answer to the call.
absl::Status ConstraintError(const absl::Status& compiled);

// Holds the session to the constraint, from where its output stands.
absl::Status Constrain(std::shared_ptr<const CompiledConstraint> constraint, const ServedTarget& target,
                       SessionRequest* session);

}  // namespace tandem
