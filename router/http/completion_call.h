#pragma once

#include <memory>
#include <string>

#include "router/http/http_message.h"
#include "router/http/openai_request.h"
#include "router/serving/client_stream.h"
#include "router/serving/router.h"

namespace tandem::router {

// Serves one completion over HTTP: an OutputsCall for each of its prompts, whose events become one answer or
// one stream of server-sent events. Everything about a request is GenerateCall's: admission, choice,
// failover, traces.
//
//   OutputsCall 0 --.                              .--> HttpExchange
//   OutputsCall 1 ---> CompletionCall (one answer) -'
//
// A client that is gone cancels them all; one of them that fails before anything was sent is the answer, and
// the others are cancelled; later it is the stream's last event. An answer that comes whole waits for all.
//
// `head` is who calls and `request_id` the request's own id; with several prompts theirs have "-0", "-1"
// behind it.
void ServeCompletion(Router& router, const CallHead& head, CompletionRequest request, std::string request_id,
                     std::vector<std::pair<std::string, std::string>> answer_fields,
                     std::shared_ptr<HttpExchange> exchange);

}  // namespace tandem::router
