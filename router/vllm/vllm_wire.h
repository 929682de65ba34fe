#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/v1/generation.pb.h"
#include "vllm/vllm_engine.pb.h"

namespace tandem::router {

namespace engine = ::vllm::grpc::engine;

// The request in Tandem's terms. What vLLM's server takes an absent value for is written out, so that a
// model's own defaults change nothing. Values are for GenerateCall to judge. InvalidArgument names a field
// that asks for what Tandem does not do, or one that the protocol had no name for when this was written.
absl::StatusOr<v1::GenerateRequest> RequestOf(const engine::GenerateRequest& asked);

// The status with fields under the names they have in vLLM's protocol.
absl::Status WithVllmNames(const absl::Status& status);

// Turns the events of a generation into responses. Not thread-safe.
class VllmAnswer {
 public:
  explicit VllmAnswer(const engine::GenerateRequest& asked);

  // What to send for the event; nothing for one that is told later.
  std::optional<engine::GenerateResponse> OnEvent(const v1::GenerateResponse& event);

 private:
  // One of the `n` outputs.
  struct Output {
    engine::GenerateComplete complete;  // As far as it is known.
    bool begun = false;                 // A chunk has been sent.
  };

  Output& OutputOf(const v1::GenerateResponse& event);
  void AddLogprobs(const v1::GenerationChunk& chunk, engine::OutputLogProbs& logprobs) const;
  void AddPrompt(const v1::PromptChunk& prompt, engine::InputLogProbs& logprobs) const;
  engine::GenerateResponse Finish(const v1::GenerationFinished& finished, Output& output) const;

  const bool stream_;
  const std::optional<int32_t> logprobs_;
  const int32_t prompt_logprobs_;
  const std::set<uint32_t> stop_tokens_;
  std::vector<Output> outputs_;
};

}  // namespace tandem::router
