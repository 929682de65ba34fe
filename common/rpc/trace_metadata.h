#pragma once

#include "common/rpc/server.h"
#include "common/tracing/trace_context.h"
#include "grpcpp/client_context.h"

namespace tandem {

// The trace context of a call, from its metadata `traceparent` and `tracestate`. Not valid if there is none,
// if it is malformed, or if there are several; then a new trace starts, and the call continues.
TraceContext TraceContextOf(const CallMetadata& metadata);

// Adds the context to a call that has not started. Does nothing if it is not valid.
void AddTraceContext(const TraceContext& trace, grpc::ClientContext& context);

}  // namespace tandem
