#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// How a chat's tools constrain its output (docs/reference/structured.md).

inline constexpr int kMaxTools = 128;
inline constexpr size_t kMaxToolNameBytes = 128;

// Whether the target must call a tool.
bool IsForced(const v1::ToolChoice& choice);
// Whether the output may contain calls.
bool OffersTools(const v1::ChatPrompt& chat);

// The checks that need only the request. `constrained`: the request has a constraint of its own.
// InvalidArgument names the field.
absl::Status ValidateTools(const v1::ChatPrompt& chat, bool constrained);

// The constraint that the tools put on the output: structural tags in the model's format, one for each
// function that may be called. nullopt if the target may call freely. InvalidArgument names the wrong field,
// for example a schema that is no JSON object. FailedPrecondition if the model's format cannot be
// constrained, or its template does not support tools.
absl::StatusOr<std::optional<v1::Constraint>> ConstraintOfTools(const v1::ChatPrompt& chat,
                                                                const ServedModel& model);

// Rewrites a verifier's error about that constraint in terms of the request's tools.
absl::Status ToolError(const v1::ChatPrompt& chat, const absl::Status& status);

}  // namespace tandem::router
