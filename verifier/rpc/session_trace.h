#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/speculation/draft_messages.h"
#include "common/tracing/span.h"
#include "verifier/session/session.h"

namespace tandem {

// Limits per request: further rounds and drafter sessions are only counted and have no spans.
inline constexpr uint32_t kMaxRoundSpans = 64;
inline constexpr size_t kMaxDraftSpans = 16;

// The spans of one request at the verifier, made from the events of its session:
//
//   Generate (server)   the whole call
//     constraint compile   of requests with a constraint, from arrival: at once if it was known
//     queue             arrival to admission
//     prefill           admission to the first round, or to the end of the forward pass that both share
//     draft session     opened at a drafter to closed there; the drafter's own spans are below it
//     round             wait for drafts, forward pass and commit
//       draft wait      of rounds that waited
//       masks           of rounds under a constraint: from the first mask that was made to the last
//
// If the trace is not sampled, nothing is recorded, but drafters still get the context. Used by one thread at
// a time.
class SessionTrace {
 public:
  // Not part of a trace.
  SessionTrace() = default;
  // `call` has just begun, at `arrival`.
  SessionTrace(Span call, absl::Time arrival);
  SessionTrace(SessionTrace&&) = default;
  SessionTrace& operator=(SessionTrace&&) = default;

  bool recording() const { return call_.recording(); }
  // The id as it appears in logs.
  std::string trace_id() const { return TraceIdText(call_.context()); }

  // The request has a constraint, whose compilation starts now; and the result of that.
  void OnConstraint(absl::Time now);
  void OnCompiled(absl::StatusCode code, absl::Time now);
  void OnStarted(absl::Time now);
  // The round ended at `now`.
  void OnRound(const RoundReport& report, absl::Time now);
  // A message is about to be sent. If it opens a session, adds the trace context. `endpoint` returns the
  // drafter's address, and is only called if needed.
  void OnDraftRequest(const std::function<std::string()>& endpoint, DraftRequest& request, absl::Time now);
  void OnDraftResponse(const DraftResponse& response, absl::Time now);
  // Ends the call and all open spans.
  void OnFinished(const absl::Status& status, const SessionSummary& summary, absl::Time now);

 private:
  struct DraftSpan {
    SessionId session = 0;
    Span span;
    uint32_t opens = 0;
    uint64_t nodes = 0;  // Received.
  };

  DraftSpan* FindDraft(SessionId session);
  const TraceContext& OpenDraft(const std::function<std::string()>& endpoint, SessionId session,
                                const std::string& draft_model, absl::Time now);
  void EndDraft(SessionId session, absl::StatusCode code, absl::Time now);

  Span call_;
  bool constrained_ = false;
  Span compile_;
  Span queue_;
  Span prefill_;
  std::vector<DraftSpan> drafts_;  // That have not ended.
  size_t num_drafts_ = 0;
  uint32_t num_rounds_ = 0;
};

}  // namespace tandem
