#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/generation/generation_facts.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// What happens to a generation between attempts.
enum class Turn {
  kRetry,         // Another attempt follows the one that failed, now or after a pause.
  kRetryRefused,  // The router's budget for retries is used up.
  kWait,          // It waits for a verifier that serves,
  kServed,        // and one does,
  kWaitedInVain,  // or none did in time.
};

// Is told of a generation's events: metrics, traces, the live page, recorded traffic, and all that learns
// from requests. An observer changes nothing that a generation decides; without observers, clients get the
// same bytes. Two of its methods may change what is passed to them: OnPrepared may ask the verifier for more
// than the client did, and OnEvent then takes that out again. No two observers may ask for the same field.
//
//   OnStage (kReceive ... kComplete) -> OnPrepared -> { OnAttempt -> OnEvent ... -> OnAttemptEnded, OnTurn }
//        '----------------------------------'----------------------------------------'---> OnEnded, once,
//        last
//
// The methods run under the call's mutex, in the order of the list that the generation was given. They may
// take locks of their own, but call nothing of the generation. `now`: one reading of the clock for all
// observers of an event.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;

  // A stage of preparation is over. kEncode and kChoose, which run without the mutex, are told when both
  // are over, before kComplete.
  virtual void OnStage(Stage, const GenerationFacts&, absl::Time /*now*/) {}
  // The request is about to go to a verifier for the first time.
  virtual void OnPrepared(const GenerationFacts&, v1::VerifierGenerateRequest& /*request*/,
                          absl::Time /*now*/) {}
  // An attempt starts on the verifier at `endpoint`, after the one before has ended. Attempts that found no
  // verifier count in `number`.
  virtual void OnAttempt(const GenerationFacts&, int /*number*/, absl::string_view /*endpoint*/,
                         absl::Time /*now*/) {}
  // An event on its way to the client.
  virtual void OnEvent(const GenerationFacts&, v1::GenerateResponse& /*event*/, absl::Time /*now*/) {}
  // Every attempt that started ends once.
  virtual void OnAttemptEnded(const GenerationFacts&, const absl::Status&, absl::Time /*now*/) {}
  virtual void OnTurn(Turn, const absl::Status& /*reason*/, const GenerationFacts&, absl::Time /*now*/) {}
  // The client has been sent everything but `status`, its end; or it is gone, or took nothing for too long,
  // and what was queued is dropped. Before the client can know it, so that what it sees next counts this
  // generation as over.
  virtual void OnEnded(const GenerationFacts&, const absl::Status& /*status*/, absl::Time /*now*/) {}
};

}  // namespace tandem::router
