#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What a chat's tools mean for its output: docs/reference/structured.md.

inline constexpr int kMaxTools = 128;
inline constexpr size_t kMaxToolNameBytes = 64;

// Whether the target has to call.
bool IsForced(const v1::ToolChoice& choice);
// Whether calls are looked for in the output.
bool OffersTools(const v1::ChatPrompt& chat);

// The checks that need nothing but the request; `constrained`: it has a constraint of its own.
// InvalidArgument names the field.
absl::Status ValidateTools(const v1::ChatPrompt& chat, bool constrained);

// What the output is held to because of the tools: structural tags, one for each function that may be called,
// in the model's format. Nothing where the target calls by itself as it likes. InvalidArgument names the
// field that is wrong, a schema that is no JSON object among them; FailedPrecondition, when the model's
// format cannot be held to it, or its template does not tell of tools.
absl::StatusOr<std::optional<v1::Constraint>> ConstraintOfTools(const v1::ChatPrompt& chat,
                                                                const ServedModel& model);

// A verifier's complaint about that constraint, in the words of the request that it was made of.
absl::Status ToolError(const v1::ChatPrompt& chat, const absl::Status& status);

}  // namespace tandem::router
