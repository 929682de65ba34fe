#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/tracing/span.h"
#include "router/generation/generation_facts.h"
#include "router/generation/generation_observer.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// The spans of one request at the router:
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
class RequestTrace final : public GenerationObserver {
 public:
  // The call arrived with `parent`.
  RequestTrace(const Tracer& tracer, const TraceContext& parent, absl::Time now);

  // The id as it appears in logs.
  std::string trace_id() const { return TraceIdText(call_.context()); }
  // Of the current attempt, for its verifier.
  const TraceContext& attempt_context() const { return attempt_.context(); }
  // The span for scoring the output.
  Span StartFeedback(absl::Time now) const { return call_.Child("feedback", SpanKind::kInternal, now); }

  void OnStage(Stage stage, const GenerationFacts& facts, absl::Time now) override;
  void OnAttempt(const GenerationFacts& facts, int number, absl::string_view endpoint,
                 absl::Time now) override;
  void OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time now) override;
  void OnAttemptEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time now) override;
  // Without it, only spans that have already ended are exported.
  void OnEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time now) override;

 private:
  void Describe(const v1::GenerateRequest& request, absl::string_view tenant);
  void OnComplete(const GenerationFacts& facts, absl::Time now);
  void OnFinished(const v1::GenerationFinished& finished);

  const absl::Time arrival_;
  Span call_;
  Span queue_;
  Span attempt_;
  bool has_tokens_ = false;
};

}  // namespace tandem::router
