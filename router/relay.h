#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What becomes of one request's events on their way from verifiers to the client. Holds no I/O: the call
// feeds it what a verifier sent and does what it says.
//
//   attempt 1: started, (lost)              started goes on to the client, the loss does not
//   attempt 2: started, chunk..., finished  started is swallowed, the rest goes on
//
// A verifier is trusted no further than needed to keep the client's contract: one `started`, chunks without
// gaps, one `finished` at the end, and one terminal status. Not thread-safe.
class Relay {
 public:
  // What the client is told in `started` that the verifier does not know.
  struct Names {
    std::string model;
    std::string drafter;  // Empty for none.
  };

  explicit Relay(Names names) : names_(std::move(names)) {}

  // A new attempt on the verifier at `endpoint` begins.
  void OnAttempt(absl::string_view endpoint);

  // An event of the current attempt. True: send it on; it may have been completed in place. False: drop it.
  // Internal when it breaks the protocol; the attempt is then to be cancelled and the request ends with that
  // status.
  absl::StatusOr<bool> OnEvent(v1::GenerateResponse& event);

  struct End {
    bool retry = false;   // Nothing was lost: try the next verifier.
    absl::Status status;  // The request's terminal status when there is no retry, or none left to try.
  };

  // The current attempt's call ended with `status`.
  End OnEnd(const absl::Status& status) const;

  // Tokens sent on so far.
  uint32_t num_tokens() const { return num_tokens_; }
  bool finished() const { return finished_; }

 private:
  absl::Status ProtocolError(absl::string_view what) const;

  const Names names_;
  std::string endpoint_;
  bool attempt_started_ = false;  // The current attempt has sent `started`.
  bool started_ = false;          // The client has been sent it.
  bool finished_ = false;
  uint32_t num_tokens_ = 0;
};

}  // namespace tandem::router
