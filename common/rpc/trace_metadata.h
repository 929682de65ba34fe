#pragma once

#include "common/rpc/server.h"
#include "common/tracing/trace_context.h"
#include "grpcpp/client_context.h"

namespace tandem {

// The trace that a call came with, by its metadata `traceparent` and `tracestate`; not valid if there is
// none, if it is malformed, or if there are several: a trace begins anew then, and the call goes on.
TraceContext TraceContextOf(const CallMetadata& metadata);

// Sends the context along with a call that has not begun; nothing if it is not valid.
void AddTraceContext(const TraceContext& trace, grpc::ClientContext& context);

}  // namespace tandem
