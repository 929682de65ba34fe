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

// Converts a request to Tandem's. Absent values are replaced by the defaults of vLLM's server, so that the
// model's own defaults do not apply. Preparation checks the values. InvalidArgument names a field that asks
// for something Tandem does not support, or that is unknown to this version of the protocol.
absl::StatusOr<v1::GenerateRequest> RequestOf(const engine::GenerateRequest& asked);

// The status, with field names of vLLM's protocol.
absl::Status WithVllmNames(const absl::Status& status);

// Turns the events of a generation into responses. Not thread-safe.
class VllmAnswer {
 public:
  explicit VllmAnswer(const engine::GenerateRequest& asked);

  // The response for the event; nullopt if it is reported with a later one.
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
