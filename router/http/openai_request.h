#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What of a completion request is about its answer.
struct CompletionRequest {
  enum class Api { kText, kChat, kResponses };
  Api api = Api::kText;
  std::vector<v1::GenerateRequest> prompts;
  uint32_t num_outputs = 1;  // Of each prompt: as many choices, which follow one another.
  bool stream = false;
  bool include_usage = false;     // A last chunk with the usage of the whole,
  bool usage_so_far = false;      // and in the others, that of their choice so far: vLLM's field.
  bool return_token_ids = false;  // vLLM's field.
  bool echo = false;              // Prompts stand before their outputs.
  // Log probabilities were asked for, and of how many tokens besides the chosen one.
  std::optional<uint32_t> logprobs;
  // vLLM's field: log probabilities of the prompt, and of how many likely tokens at each place.
  std::optional<uint32_t> prompt_logprobs;
  OrderedJson echoed;  // Of /v1/responses: fields that the answer repeats.

  bool chat() const { return api == Api::kChat; }
  size_t num_choices() const { return prompts.size() * num_outputs; }
};

// Most choices of one call.
inline constexpr size_t kMaxPromptsPerCall = 128;

// Read a body of POST /v1/chat/completions and /v1/completions: OpenAI's fields, vLLM's that mean something
// here, and `tandem` with SpeculationOptions and more. docs/reference/http.md lists every field with what
// becomes of it. Nothing that would change an output goes without effect: it is refused by name, as is a
// field that nobody knows. InvalidArgument names the field. Ranges of sampling parameters are not checked
// here but where all requests are.
absl::StatusOr<CompletionRequest> ReadChatCompletion(absl::string_view body);
absl::StatusOr<CompletionRequest> ReadCompletion(absl::string_view body);

// The parts of both that the Responses API has as well.
void ReadSampling(JsonFields& fields, v1::SamplingParameters& sampling);
// Where an output ends, but for its token limit, which has several names.
void ReadStopping(JsonFields& fields, v1::StopConditions& stopping);
void ReadTandem(JsonFields& fields, v1::GenerateRequest& request);
// What belongs to a request's place in the queue and to its drafts.
void ReadPriority(JsonFields& fields, v1::GenerateRequest& request);
void ReadPrediction(JsonFields& fields, v1::GenerateRequest& request);

}  // namespace tandem::router
