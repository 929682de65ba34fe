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

// Decides which of a verifier's events the client gets, so that several attempts look like one
// stream. Does no I/O: the call passes it each event and follows its answer.
//
//   attempt 1: started, chunk, (lost)       the client gets started and the chunk
//   attempt 2: started, chunk..., finished  begins after the tokens so far; its started is dropped, and
//                                           finished gets the statistics of both
//
// Checks every event, so that even a faulty verifier cannot break what clients rely on: one
// `started`, chunks without gaps, one `finished` at the end, one terminal status. Not thread-safe.
class Relay {
 public:
  // The fields of `started` that the verifier does not know.
  struct Names {
    std::string model;
    std::string drafter;                // Empty for none,
    std::string partner;                // likewise.
    std::vector<uint32_t> prompt = {};  // Empty unless the client asked for it.
  };

  // `emitted`: output tokens that the client already has, if it resumes a stream. `prompt_tokens`:
  // length of the prompt if the client gets its tokens with log probabilities, otherwise 0.
  explicit Relay(Names names, std::vector<uint32_t> emitted = {}, uint32_t prompt_tokens = 0)
      : names_(std::move(names)),
        num_resumed_(emitted.size()),
        prompt_tokens_(prompt_tokens),
        tokens_(std::move(emitted)) {}

  // A new attempt starts on the verifier at `endpoint`. Pass tokens() to it as emitted.
  void OnAttempt(absl::string_view endpoint);

  // An event of the current attempt. True: send `event`, in which fields may have been filled in.
  // False: drop it. Internal if it breaks the protocol: cancel the attempt, and end the request
  // with that status.
  absl::StatusOr<bool> OnEvent(v1::GenerateResponse& event);

  struct End {
    bool retry = false;   // The verifier was lost or is full; another one can continue.
    absl::Status status;  // The request's terminal status when there is no retry, or none left to try.
  };

  // The current attempt's call ended with `status`. `in_time`: the request's deadline has not
  // passed. A verifier that claims it has passed has a wrong clock.
  End OnEnd(const absl::Status& status, bool in_time) const;

  // The output so far, including the tokens with which the client resumed.
  absl::Span<const uint32_t> tokens() const { return tokens_; }
  // Tokens sent to the client so far.
  uint32_t num_tokens() const { return static_cast<uint32_t>(tokens_.size() - num_resumed_); }
  bool finished() const { return finished_; }
  // Whether the client has all prompt tokens that it asked for.
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
  uint32_t prompt_told_ = 0;     // Sent to the client,
  uint32_t prompt_in_turn_ = 0;  // and by the current attempt.
  std::vector<uint32_t> tokens_;
  std::string endpoint_;
  bool attempt_started_ = false;  // The current attempt has sent `started`.
  bool started_ = false;          // The client has been sent it.
  bool finished_ = false;
  // Statistics of rounds, computed from chunks: of the current attempt, and of lost attempts, which
  // never send their own.
  v1::SpeculationStats current_;
  v1::SpeculationStats lost_;
};

}  // namespace tandem::router
