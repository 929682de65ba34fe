#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "router/spool/spool.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// One output of a tenant that is recorded:
//
//   (constructed) -> Begin -> OnEvent ... -> End
//
// The verifier is asked for the most likely tokens, and what the client did not ask for is taken out of the
// events again. Not thread-safe.
class RecordedCall {
 public:
  // `prepared`: what the verifier is to be asked for, which is changed. `spool` outlives this.
  RecordedCall(Spool* spool, const std::string& tenant, uint64_t vocabulary_fingerprint,
               v1::VerifierGenerateRequest& prepared);

  // An event on its way to the client; call it for every one.
  void OnEvent(v1::GenerateResponse& event);
  // The output has ended as it should, all of it seen.
  void End(absl::Time now);

  // How many tokens are asked for at each place.
  static constexpr uint32_t kTop = 20;

 private:
  Spool* const spool_;
  bool client_wants_logprobs_ = false;
  uint32_t client_top_ = 0;
  bool whole_ = true;  // All tokens came with what was asked for.
  SpoolRecord record_;
};

}  // namespace tandem::router
