#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tracing/trace_context.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What is known of a call before its request is read, however it came.
struct CallHead {
  // As sent: "Bearer <token>". Empty counts as malformed, as do several; absent is the anonymous tenant's.
  std::optional<std::string> authorization;
  std::string peer;    // gRPC's name for where it calls from; empty: not by gRPC.
  TraceContext trace;  // Not valid: a new trace begins.
  absl::Time deadline = absl::InfiniteFuture();
};

// Where the events of one generation go: a gRPC stream, or an answer over HTTP. GenerateCall owns the order
// of things, and this carries them out:
//
//   Write -> (OnWriteDone) -> Write -> (OnWriteDone) -> ... -> Finish -> (OnDone)
//
// Called with the call's mutex held, so an implementation answers later and from elsewhere, never from
// inside. It tells the call about a client that is gone by GenerateCall::OnCancel, at any time before OnDone.
class ClientStream {
 public:
  virtual ~ClientStream() = default;
  // Sends an event, which stays as it is until OnWriteDone. One at a time.
  virtual void Write(const v1::GenerateResponse& event) = 0;
  // Ends the stream, once, with no write under way. OK after the last event; otherwise why it ended.
  virtual void Finish(const absl::Status& status) = 0;
  // Breaks the connection to a client that takes nothing: the write under way fails soon. Called without the
  // call's mutex, before Finish.
  virtual void Cancel() = 0;
};

}  // namespace tandem::router
