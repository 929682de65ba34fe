#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_request.h"

namespace tandem::router {

// Reads the body of POST /v1/messages, Anthropic's Messages API: text, tools, their uses and results.
// docs/reference/http.md lists the fields. Unknown ones and errors: as with ReadChatCompletion.
absl::StatusOr<CompletionRequest> ReadMessagesRequest(absl::string_view body, bool refuse_unknown);

// Reads the body of POST /v1/messages/count_tokens: the same prompt, without what is said of the output.
absl::StatusOr<CompletionRequest> ReadCountTokens(absl::string_view body, bool refuse_unknown);

}  // namespace tandem::router
