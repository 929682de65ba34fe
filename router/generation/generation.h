#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/generation/generation_facts.h"
#include "router/generation/generation_host.h"
#include "router/generation/generation_observer.h"
#include "router/generation/relay.h"
#include "router/models/parsed_output.h"
#include "router/verifiers/failover.h"
#include "router/verifiers/verifier_traits.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// One generation, from the arrival of its call to its one terminal status, as a state machine: events come in
// as calls of OnX, actions go out through GenerationHost, and what happened is told to observers.
//
//   Reach(stage) ... -- Abandon --------------------------------------------.
//     |                                                                     |
//     v                                                                     v
//   PREPARING --> RELAYING (attempt 1, 2, ... until one holds) ---------> ENDING --> FINISHED
//     OnPrepared    |  verifier -> queue_ -> client                       queue_ is delivered
//                   '-- client cancels, is gone, or the deadline passes: queue_ is dropped, FINISHED at once
//
// If a verifier is lost or stalls, the generation retries on another one. The next attempt gets the prompt
// and the output so far and continues with the next token (DESIGN law 2), so that the client sees one stream.
// Failover decides where and when, within the router's retry budget and the deadline. While no verifier of
// the model serves, the generation waits for one, for at most Options::longest_wait without a new token, and
// then tries all of them again.
//
// The generation gives up its place in flight as soon as its status is decided, even if the client has not
// read the rest. If the client reads nothing for Options::write_stall_timeout, the generation ends, and the
// client's connection is to be broken.
//
// Flow control works end to end: an event is acknowledged to its attempt once the client has taken it, so a
// slow client slows its verifier and does not fill memory here. GenerationHost::Finish is called exactly once
// and never while a write is in flight. `status_` is decided once; later events do not change it.
//
// Protocol logic (docs/inside/design.md, law 4): no gRPC, no threads, no clock. Not thread-safe: the owner
// serialises all calls, and the host calls nothing back from inside one. The host and the observers outlive
// it.
class Generation {
 public:
  static constexpr size_t kReceiveWindow = 8;

  struct Options {
    absl::Time deadline = absl::InfiniteFuture();
    absl::Duration longest_wait;  // For a verifier that serves. Zero: it does not wait.
    absl::Duration write_stall_timeout = absl::InfiniteDuration();
  };
  // `observers` are told in their order.
  Generation(GenerationHost* host, const Options& options, std::vector<GenerationObserver*> observers);

  const GenerationFacts& facts() const { return facts_; }
  // For the stages of preparation, until OnPrepared.
  GenerationFacts& facts() { return facts_; }
  absl::Time deadline() const { return options_.deadline; }
  // Whether the terminal status is decided.
  bool ended() const { return status_.has_value(); }

  // A stage of preparation is over, since `when`.
  void Reach(Stage stage, absl::Time when);
  // Everything in facts() is known; what else preparation has found:
  struct Prepared {
    std::optional<ParsedOutput> parsed;  // Of a chat whose output is parsed.
    v1::ChatPrompt tools;  // Those that the constraint was made of, so that errors can name them.
  };
  // Starts the first attempt.
  void OnPrepared(Prepared prepared);

  // The verifier's side. Events of attempts that are over change nothing.
  void OnVerifierEvent(int attempt, v1::GenerateResponse event);
  // The attempt's stream has ended, or its verifier has stalled.
  void OnVerifierDone(int attempt, const absl::Status& status);
  void OnVerifierServes();
  void OnTimer(int number);

  // The client's side. The write in flight has succeeded (`ok`), or failed for good.
  void OnWriteDone(bool ok);
  // The client has cancelled, or is gone.
  void OnClientGone();
  // True if the client has read nothing for too long: the owner then breaks its connection, with which the
  // write in flight fails, and calls OnClientBroken. Finish comes no sooner than that.
  [[nodiscard]] bool OnWriteTimer();
  void OnClientBroken();

  // If the request is bound to the drafter `from`: binds it to `to` for all later attempts, and returns the
  // attempt that runs now. Null if there is none.
  const GenerationHost::Attempt* Rebind(const std::string& from, const v1::DrafterTarget& to);
  // Ends the generation with this status, at any stage; an error that preparation has found, or the router's
  // own reason.
  void Abandon(const absl::Status& status);

 private:
  struct Queued {
    v1::GenerateResponse event;
    int attempt = 0;  // The attempt it came from.
  };

  template <class Event>
  void Tell(Event event) {
    for (GenerationObserver* const observer : observers_) event(*observer);
  }
  void TellTurn(Turn turn, const absl::Status& reason);

  // Whether this attempt is the current one, so that its events still count.
  bool IsCurrent(int attempt) const {
    return !status_.has_value() && attempt == attempts_ && attempt_ != nullptr;
  }
  void StartAttempt();
  void EndAttempt(const absl::Status& status);
  // What a verifier must have to run the rest of the request.
  VerifierNeeds Needs() const;
  // The current attempt failed: starts another one, now or after a pause, or ends the generation.
  void Retry(const absl::Status& reason);
  void RetryAt(absl::Time when);
  // No verifier takes the request, for `reason`: waits for one, or ends the generation.
  void EndWithoutVerifier(const absl::Status& reason);
  absl::Status NoVerifier(absl::string_view last) const;
  // Starts to wait for a verifier that serves. If none does in time, the generation ends with `reason`. False
  // if it may not wait, or may not wait any longer.
  bool WaitForVerifier(const absl::Status& reason);
  void EndWait();
  void OnWaitOver();
  // Adds to the first chunk after it is known how the output is computed.
  void TellArithmetic(v1::GenerationChunk& chunk);
  // Sends an event that the relay has let through on its way to the client.
  void PassOn(int attempt, v1::GenerateResponse event);

  // Decides the terminal status, unless it is decided already, and releases the verifier.
  void End(absl::Status status);
  void DropQueue();
  // Starts the next write, or finishes when nothing is left to write.
  void Advance();
  void WatchWrite();

  GenerationHost& host_;
  const Options options_;
  const std::vector<GenerationObserver*> observers_;
  GenerationFacts facts_;

  // Set by OnPrepared.
  std::optional<Relay> relay_;
  std::optional<ParsedOutput> parsed_;
  v1::ChatPrompt tools_;

  int attempts_ = 0;  // Begun; the current one has this number.
  Failover failover_;
  // How the verifier that began the output computes, once both are known.
  uint64_t arithmetic_ = 0;
  std::unique_ptr<GenerationHost::Attempt> attempt_;  // The current one.
  int timers_ = 0;                                    // Set or made void; the current one has this number.
  bool waiting_ = false;                              // For a verifier that serves,
  absl::Status wait_reason_;                          // and what it ends with if none comes.

  std::deque<Queued> queue_;  // The front one is being written while writing_.
  bool writing_ = false;
  absl::Duration write_began_;  // By the host's uptime; its timer is set while watching_.
  bool watching_ = false;
  bool breaking_ = false;  // Between OnWriteTimer and OnClientBroken: keeps back Finish.
  bool finished_ = false;
  std::optional<absl::Status> status_;
};

}  // namespace tandem::router
