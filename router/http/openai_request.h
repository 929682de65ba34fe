#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What a tool that the target knows as a function is to the client of /v1/responses.
struct ToolOrigin {
  std::string name;
  std::string space;    // The namespace that it stands in; empty: none.
  bool custom = false;  // It takes a text, not arguments.
};

// A completion request: the generations to run, and the form of the answer.
struct CompletionRequest {
  enum class Api { kText, kChat, kResponses, kMessages };
  Api api = Api::kText;
  std::vector<v1::GenerateRequest> prompts;
  uint32_t num_outputs = 1;  // Of each prompt: as many choices, which follow one another.
  bool stream = false;
  bool include_usage = false;     // A last chunk with the usage of the whole,
  bool usage_so_far = false;      // and in the others, that of their choice so far: vLLM's field.
  bool return_token_ids = false;  // vLLM's field.
  bool echo = false;              // Prompts stand before their outputs.
  // Set if log probabilities were requested: for how many tokens besides the chosen one.
  std::optional<uint32_t> logprobs;
  // vLLM's field: log probabilities of the prompt, for this many likely tokens at each position.
  std::optional<uint32_t> prompt_logprobs;
  std::map<std::string, ToolOrigin> origins;  // Of tools, by the target's names; plain functions have none.
  OrderedJson echoed;                         // Of /v1/responses: fields that the answer repeats.
  // Parts of the request that nobody here can serve, such as tools that run at a provider: "tools[2]". They
  // have no effect, and the head of the answer names them.
  std::vector<std::string> left_out;

  bool chat() const { return api == Api::kChat; }
  size_t num_choices() const { return prompts.size() * num_outputs; }
};

// Most choices of one call.
inline constexpr size_t kMaxPromptsPerCall = 128;

// Reads the body of POST /v1/chat/completions or /v1/completions: OpenAI's fields, those of vLLM's that have
// a meaning here, and `tandem` with SpeculationOptions and more. docs/reference/http.md lists every field and
// its effect. A field that would change the output but is not supported is refused by name, as is an unknown
// field. InvalidArgument names the field. Ranges of sampling parameters are checked later, for all requests
// in one place.
absl::StatusOr<CompletionRequest> ReadChatCompletion(absl::string_view body);
absl::StatusOr<CompletionRequest> ReadCompletion(absl::string_view body);

// The parts that the Responses API has as well.
void ReadSampling(JsonFields& fields, v1::SamplingParameters& sampling);
// Stop conditions, except the token limit, which has several names.
void ReadStopping(JsonFields& fields, v1::StopConditions& stopping);
void ReadTandem(JsonFields& fields, v1::GenerateRequest& request);
// The request's priority in the queue, and its fields about drafts.
void ReadPriority(JsonFields& fields, v1::GenerateRequest& request);
void ReadPrediction(JsonFields& fields, v1::GenerateRequest& request);

}  // namespace tandem::router
