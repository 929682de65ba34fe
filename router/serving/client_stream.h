#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config/secret.h"
#include "common/tracing/trace_context.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What the router knows about a call before it reads the request. The same for gRPC and HTTP.
struct CallHead {
  // As sent: "Bearer <token>". An empty header and several headers are malformed; no header means the
  // anonymous tenant.
  std::optional<Secret> authorization;
  TraceContext trace;  // Not valid: a new trace begins.
  absl::Time deadline = absl::InfiniteFuture();
};

// The client's end of one generation: a gRPC stream, or an answer over HTTP. Generation decides what
// happens when; a ClientStream carries it out:
//
//   Write -> (OnWriteDone) -> Write -> (OnWriteDone) -> ... -> Finish -> (OnDone)
//
// GenerateCall calls these methods with its mutex held, so an implementation must call back later, from
// another thread, and never from inside a method. If the client is gone, it calls GenerateCall::OnCancel, at
// any time before OnDone.
class ClientStream {
 public:
  virtual ~ClientStream() = default;
  // Sends an event. `event` stays unchanged until OnWriteDone. One write at a time.
  virtual void Write(const v1::GenerateResponse& event) = 0;
  // Ends the stream, once, while no write is in flight. OK after the last event, otherwise the reason why it
  // ended.
  virtual void Finish(const absl::Status& status) = 0;
  // Breaks the connection to a client that does not read, so that the write in flight fails soon. Called
  // without the call's mutex, before Finish.
  virtual void Cancel() = 0;
};

}  // namespace tandem::router
