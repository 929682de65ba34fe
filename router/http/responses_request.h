#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_request.h"

namespace tandem::router {

// Reads the body of POST /v1/responses: text, functions and the items of a conversation. The router stores no
// responses, so fields that need stored ones are refused by name. docs/reference/http.md lists the fields.
// InvalidArgument names the wrong one. `refuse_unknown`: as for ReadCompletion.
absl::StatusOr<CompletionRequest> ReadResponse(absl::string_view body, bool refuse_unknown);

}  // namespace tandem::router
