#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "router/spool/spool.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Records one output of a tenant that opted in:
//
//   (constructed) -> Begin -> OnEvent ... -> End
//
// Asks the verifier for the most likely tokens, and removes from the events what the client did not ask for.
// Not thread-safe.
class RecordedCall {
 public:
  // Changes `prepared`, the request for the verifier. `spool` outlives this.
  RecordedCall(Spool* spool, const std::string& tenant, uint64_t vocabulary_fingerprint,
               v1::VerifierGenerateRequest& prepared);

  // Call it for every event on its way to the client.
  void OnEvent(v1::GenerateResponse& event);
  // The output ended normally, and all of it was seen.
  void End(absl::Time now);

  // How many likely tokens to request at each position.
  static constexpr uint32_t kTop = 20;

 private:
  Spool* const spool_;
  bool client_wants_logprobs_ = false;
  uint32_t client_top_ = 0;
  bool whole_ = true;  // All tokens came with what was asked for.
  SpoolRecord record_;
};

}  // namespace tandem::router
