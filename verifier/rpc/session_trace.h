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

// Of one request: rounds beyond the first so many have no spans of their own and are counted, and so are the
// drafter sessions beyond these.
inline constexpr uint32_t kMaxRoundSpans = 64;
inline constexpr size_t kMaxDraftSpans = 16;

// The spans of one request at the verifier, from what happens to its session:
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
// Where the trace is not recorded nothing is kept, and drafters are told the context all the same. Belongs to
// one thread at a time.
class SessionTrace {
 public:
  // Of no trace.
  SessionTrace() = default;
  // `call` has just begun, at `arrival`.
  SessionTrace(Span call, absl::Time arrival);
  SessionTrace(SessionTrace&&) = default;
  SessionTrace& operator=(SessionTrace&&) = default;

  bool recording() const { return call_.recording(); }
  // As in logs.
  std::string trace_id() const { return TraceIdText(call_.context()); }

  // A request with a constraint, which is compiled from now on; and what became of that.
  void OnConstraint(absl::Time now);
  void OnCompiled(absl::StatusCode code, absl::Time now);
  void OnStarted(absl::Time now);
  // The round was concluded `now`.
  void OnRound(const RoundReport& report, absl::Time now);
  // A message is about to be sent: one that opens a session is told its trace. `endpoint` says whose it is,
  // if that is asked for.
  void OnDraftRequest(const std::function<std::string()>& endpoint, DraftRequest& request, absl::Time now);
  void OnDraftResponse(const DraftResponse& response, absl::Time now);
  // The end of the call, and of all spans that are left.
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
