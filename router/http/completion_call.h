#pragma once

#include <memory>
#include <string>

#include "router/http/openai_request.h"
#include "router/http/server/http_message.h"
#include "router/serving/client_stream.h"
#include "router/serving/router.h"

namespace tandem::router {

// Serves one completion over HTTP: runs an OutputsCall for each of its prompts, and turns their events into
// one answer or one stream of server-sent events. GenerateCall does the rest: admission, choice, failover,
// traces.
//
//   OutputsCall 0 --.                              .--> HttpExchange
//   OutputsCall 1 ---> CompletionCall (one answer) -'
//
// If the client is gone, all are cancelled. If one fails, the others are cancelled: its error is the answer,
// or, if something was already sent, the last event of the stream. An answer that is not streamed waits for
// all.
//
// `head`: of the call. `request_id`: of the whole request; with several prompts, "-0", "-1" and so on are
// appended.
void ServeCompletion(Router& router, const CallHead& head, CompletionRequest request, std::string request_id,
                     std::vector<std::pair<std::string, std::string>> answer_fields,
                     std::shared_ptr<HttpExchange> exchange);

}  // namespace tandem::router
