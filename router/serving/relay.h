#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What becomes of one request's events on their way from verifiers to the client. Holds no I/O: the call
// feeds it what a verifier sent and does what it says.
//
//   attempt 1: started, chunk, (lost)       goes on to the client, but for the loss
//   attempt 2: started, chunk..., finished  is given the tokens so far; started is swallowed, the rest goes
//   on,
//                                           finished with the statistics of both
//
// A verifier is trusted no further than needed to keep the client's contract: one `started`, chunks without
// gaps, one `finished` at the end, and one terminal status. Not thread-safe.
class Relay {
 public:
  // What the client is told in `started` that the verifier does not know.
  struct Names {
    std::string model;
    std::string drafter;  // Empty for none,
    std::string partner;  // likewise.
  };

  // `emitted`: the output's tokens that the client has already, when it resumes a stream.
  // `prompt_tokens`: of a prompt that the client is to be told with its log probabilities; 0: it is not.
  explicit Relay(Names names, std::vector<uint32_t> emitted = {}, uint32_t prompt_tokens = 0)
      : names_(std::move(names)),
        num_resumed_(emitted.size()),
        prompt_tokens_(prompt_tokens),
        tokens_(std::move(emitted)) {}

  // A new attempt on the verifier at `endpoint` begins. It is to be given tokens() as emitted.
  void OnAttempt(absl::string_view endpoint);

  // An event of the current attempt. True: send it on; it may have been completed in place. False: drop it.
  // Internal when it breaks the protocol; the attempt is then to be cancelled and the request ends with that
  // status.
  absl::StatusOr<bool> OnEvent(v1::GenerateResponse& event);

  struct End {
    bool retry = false;   // The verifier was lost, or is full: another one can go on.
    absl::Status status;  // The request's terminal status when there is no retry, or none left to try.
  };

  // The current attempt's call ended with `status`. `in_time`: the request's own deadline has not passed, so
  // that a verifier that says so has a clock that is wrong.
  End OnEnd(const absl::Status& status, bool in_time) const;

  // The output so far, what the client resumed with included.
  absl::Span<const uint32_t> tokens() const { return tokens_; }
  // Tokens sent on so far.
  uint32_t num_tokens() const { return static_cast<uint32_t>(tokens_.size() - num_resumed_); }
  bool finished() const { return finished_; }
  // Whether all of the prompt has been told that is to be.
  bool prompt_told() const { return prompt_told_ == prompt_tokens_; }

 private:
  absl::Status ProtocolError(absl::string_view what) const;
  absl::Status CheckChunk(const v1::GenerationChunk& chunk) const;
  absl::StatusOr<bool> OnPrompt(v1::PromptChunk& chunk);
  void Count(const v1::GenerationChunk& chunk);
  void CountShares(const v1::GenerationChunk& chunk);
  void AddLostRounds(v1::SpeculationStats& stats) const;

  const Names names_;
  const size_t num_resumed_;
  const uint32_t prompt_tokens_;
  uint32_t prompt_told_ = 0;     // Of them, to the client,
  uint32_t prompt_in_turn_ = 0;  // and by the current attempt.
  std::vector<uint32_t> tokens_;
  std::string endpoint_;
  bool attempt_started_ = false;  // The current attempt has sent `started`.
  bool started_ = false;          // The client has been sent it.
  bool finished_ = false;
  // What the rounds of attempts were, by their chunks: those of the current one, and of those that were lost,
  // which will never tell themselves.
  v1::SpeculationStats current_;
  v1::SpeculationStats lost_;
};

}  // namespace tandem::router
