#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/verifiers/verifier_traits.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Carries out what a Generation decides, and answers its questions: GenerateCall over gRPC, the simulation in
// simulated time. The generation calls these methods inside its own events, so an implementation calls back
// later, never from inside of one.
class GenerationHost {
 public:
  // The current attempt on a verifier, from the choice of the verifier on. Its destruction gives the verifier
  // back and cancels the stream, which is harmless if that has ended.
  class Attempt {
   public:
    virtual ~Attempt() = default;
    virtual const std::string& endpoint() const = 0;
    virtual size_t index() const = 0;  // Among the model's verifiers.
    // VerifierTraits::ArithmeticWith the request's adapter, as far as it is known.
    virtual uint64_t arithmetic() const = 0;
    // Opens the stream. Its events and its end come as OnVerifierEvent and OnVerifierDone, with the attempt's
    // number. At most kReceiveWindow events come that are not acknowledged.
    virtual void Start(const v1::VerifierGenerateRequest& request) = 0;
    // The client has taken one more of the attempt's events, or never gets it.
    virtual void Acknowledge() = 0;
    // Something came from the verifier.
    virtual void OnEvent() = 0;
    // The stream has ended, and the verifier did what it should (a refusal counts as that), it failed, or it
    // is not what it said. One of these is called once.
    virtual void OnSuccess() = 0;
    virtual void OnFailure() = 0;
    virtual void OnChanged() = 0;
  };

  virtual ~GenerationHost() = default;

  virtual absl::Time Now() = 0;
  // A clock that nobody sets, for the time that a client takes.
  virtual absl::Duration Uptime() = 0;

  // The verifiers of the request's model, as VerifierPool has it. BeginAttempt chooses one.
  virtual size_t num_verifiers() = 0;
  virtual bool MayServe() = 0;
  virtual absl::Status NoneServes() = 0;
  virtual bool TakeRetry() = 0;
  virtual absl::StatusOr<std::unique_ptr<Attempt>> BeginAttempt(int number,
                                                                const v1::VerifierGenerateRequest& request,
                                                                absl::Span<const size_t> tried,
                                                                const VerifierNeeds& needs) = 0;
  // From now on, OnVerifierServes comes whenever a verifier says that it serves. False if too many wait.
  virtual bool StartWaiting() = 0;
  virtual void StopWaiting() = 0;

  // OnTimer(number) comes at `when`, unless the timer is cancelled or set anew; then it may come too.
  virtual void SetTimer(absl::Time when, int number) = 0;
  virtual void CancelTimer() = 0;
  // OnWriteTimer comes after so long, unless the call has finished.
  virtual void SetWriteTimer(absl::Duration after) = 0;

  // Sends an event to the client; OnWriteDone follows. `event` stays as it is until then. One write at a
  // time.
  virtual void Write(const v1::GenerateResponse& event) = 0;
  // The terminal status is decided: the work is done, and its place goes to another request, whether or not
  // the client reads the rest. `num_sent`: as in GenerationFacts. Once.
  virtual void GiveUpPlace(uint32_t num_sent) = 0;
  // Ends the client's stream. Once, last, while no write is in flight.
  virtual void Finish(const absl::Status& status) = 0;
};

}  // namespace tandem::router
