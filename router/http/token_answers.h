#pragma once

#include <string>

#include "router/http/server/http_message.h"
#include "router/serving/router.h"

namespace tandem::router {

// Answers of the endpoints about a model's tokens: /tokenize and /detokenize in vLLM's format, and
// /v1/messages/count_tokens in Anthropic's. Tokens made here are charged to the tenant. To be called on a
// tokenizer thread.
HttpAnswer TokenizeAnswer(Router& router, const std::string& body, const Tenant& tenant);
HttpAnswer DetokenizeAnswer(Router& router, const std::string& body, const Tenant& tenant);
// `refuse_left_out`: as OpenAiApi::Options.
HttpAnswer CountTokensAnswer(Router& router, const std::string& body, const Tenant& tenant,
                             bool refuse_left_out);

}  // namespace tandem::router
