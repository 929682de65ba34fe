#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_request.h"

namespace tandem::router {

// Reads a body of POST /v1/responses: text, functions and the items of a conversation. Nothing is kept from
// one response to the next: what would need that is refused by name. docs/reference/http.md lists the fields.
// InvalidArgument names the one that is wrong.
absl::StatusOr<CompletionRequest> ReadResponse(absl::string_view body);

}  // namespace tandem::router
