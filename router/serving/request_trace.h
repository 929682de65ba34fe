#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/tracing/span.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// The spans of one request at the router. The call reports each event:
//
//   Generate (server)          the whole call
//     queue                    arrival until a worker has it: the wait for a place and for a thread
//     tokenize
//     choose drafter
//     Verifier/Generate (client)  one for each attempt on a verifier, whose own spans are below it
//     feedback                 follows the call, if its output is scored; each Score is below it
//
// If the trace is not sampled, nothing is recorded, but verifiers still get the context. Used by one thread
// at a time.
class RequestTrace {
 public:
  // The call arrived with `parent`.
  RequestTrace(const Tracer& tracer, const TraceContext& parent, absl::Time now);

  // The id as it appears in logs.
  std::string trace_id() const { return TraceIdText(call_.context()); }

  // The caller is authenticated.
  void Describe(const v1::GenerateRequest& request, absl::string_view tenant);
  void SetRequest(absl::string_view request_id, absl::string_view model);
  // A worker took the request.
  void OnTaken(absl::Time now);

  // What the worker did, and when each step began, in this order.
  struct Preparation {
    absl::Time tokenizing;
    absl::Time choosing;
    absl::Time done;
    uint32_t prompt_tokens = 0;
    absl::string_view drafter;  // Empty: none.
    absl::string_view reason;
    size_t num_candidates = 0;  // That there were to choose from; 0: it was no choice.
    double predicted = -1.0;    // Acceptance of the drafter; negative: not predicted.
  };
  void OnPrepared(const Preparation& preparation);

  // An attempt starts, after the one before has ended. Returns the context to send to the verifier.
  const TraceContext& OnAttempt(int number, absl::string_view endpoint, size_t emitted_tokens,
                                absl::Time now);
  // Does nothing if no attempt is running.
  void OnAttemptEnd(absl::StatusCode code, absl::Time now);
  // Tokens arrived. Only the first call counts.
  void OnTokens(absl::Time now);
  void OnFinished(const v1::GenerationFinished& finished);
  // The span for scoring the output.
  Span StartFeedback(absl::Time now) const { return call_.Child("feedback", SpanKind::kInternal, now); }
  // The call ended. Without it, only spans that have already ended are exported.
  void OnEnd(absl::StatusCode code, uint32_t tokens, absl::Time now);

 private:
  const absl::Time arrival_;
  Span call_;
  Span queue_;
  Span attempt_;
  bool has_tokens_ = false;
};

}  // namespace tandem::router
