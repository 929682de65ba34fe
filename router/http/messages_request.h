#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads the body of POST /v1/messages, Anthropic's Messages API: text, tools, their uses and results.
// docs/reference/http.md lists the fields. InvalidArgument names the wrong one.
absl::StatusOr<CompletionRequest> ReadMessagesRequest(absl::string_view body);

// Reads the body of POST /v1/messages/count_tokens: the same prompt, without what is said of the output.
absl::StatusOr<v1::TokenizeRequest> ReadCountTokens(absl::string_view body);

}  // namespace tandem::router
