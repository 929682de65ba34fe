#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/tracing/trace_context.h"
#include "router/generation/generation_observer.h"
#include "router/live/live_call.h"
#include "router/serving/request_trace.h"
#include "router/serving/router.h"

namespace tandem::router {

// All that is told of one call of a router, in this order:
//
//   metrics    first, so that they count what the rest may still log or trace
//   log        one line by which the request can be found, and warnings; never the prompt or the output
//   feedback   what the choice of drafters learns from the request, and from drafters that score its output
//   canary     the trial of the tenant's canary
//   policy     what the window policy has learned, for the next request
//   spool      recorded traffic of tenants that opted in; takes out what only it asked the verifier for
//   live       the live page; likewise, so after the spool
//   trace      last, so that its span is over when everything below it has begun
//
// Under the call's mutex, except for the constructor. `router` outlives this.
class CallObservers {
 public:
  CallObservers(Router& router, const TraceContext& parent, absl::Time now);

  std::vector<GenerationObserver*> list();
  RequestTrace& trace() { return trace_; }
  LiveCall& live() { return live_; }

 private:
  RequestTrace trace_;
  LiveCall live_;
  std::vector<std::unique_ptr<GenerationObserver>> others_;  // Those before `live`, in order.
};

}  // namespace tandem::router
