#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/field_names.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What a tool that the target knows as a function is to the client.
struct ToolOrigin {
  std::string name;
  std::string space;    // The namespace that it stands in; empty: none.
  bool custom = false;  // It takes a text, not arguments.
};

// By the target's names; plain functions have none.
using ToolOrigins = std::map<std::string, ToolOrigin>;

// A completion request: the generations to run, and the form of the answer.
struct CompletionRequest {
  using Api = HttpApi;
  Api api = Api::kText;
  std::vector<v1::GenerateRequest> prompts;
  uint32_t num_outputs = 1;  // Of each prompt: as many choices, which follow one another.
  bool stream = false;
  bool include_usage = false;     // A last chunk with the usage of the whole,
  bool usage_so_far = false;      // and in the others, that of their choice so far: vLLM's field.
  bool return_token_ids = false;  // vLLM's field.
  bool tokens_as_ids = false;     // vLLM's return_tokens_as_token_ids.
  // Prompts stand before their outputs; of a chat, the last message, if it is the assistant's.
  bool echo = false;
  // Set if log probabilities were requested: for how many tokens besides the chosen one.
  std::optional<uint32_t> logprobs;
  // vLLM's field: log probabilities of the prompt, for this many likely tokens at each position.
  std::optional<uint32_t> prompt_logprobs;
  ToolOrigins origins;
  OrderedJson echoed;  // Of /v1/responses: fields that the answer repeats.
  FieldNames names{HttpApi::kText};
  IgnoredFields ignored;

  bool chat() const { return api == Api::kChat; }
  // The names of the fields of one of the prompts.
  FieldNames NamesOf(size_t prompt) const;
  size_t num_choices() const { return prompts.size() * num_outputs; }
};

// Most choices of one call.
inline constexpr size_t kMaxPromptsPerCall = 128;

// Reads the body of POST /v1/chat/completions or /v1/completions: OpenAI's fields, those of vLLM's that have
// a meaning here, and `tandem` with SpeculationOptions and more. docs/reference/http.md lists every field and
// its effect. A field that would change the output but is not supported is refused by name; so is an unknown
// field with `refuse_unknown`, and otherwise it is in `ignored`. InvalidArgument names the field. Ranges of
// sampling parameters are checked later, for all requests in one place.
absl::StatusOr<CompletionRequest> ReadChatCompletion(absl::string_view body, bool refuse_unknown);
absl::StatusOr<CompletionRequest> ReadCompletion(absl::string_view body, bool refuse_unknown);

// Reads a body with one of the readers, which refuse unknown fields or not. Where these are refused, or with
// `refuse_left_out`, a request of which a part would be left out is refused as well.
using ReadRequest = absl::StatusOr<CompletionRequest> (*)(absl::string_view body, bool refuse_unknown);
absl::StatusOr<CompletionRequest> ReadFor(ReadRequest read, absl::string_view body, bool refuse_unknown,
                                          bool refuse_left_out);

// The parts that the other APIs have as well.
// A list of texts.
void ReadTexts(JsonFields& fields, absl::string_view name,
               google::protobuf::RepeatedPtrField<std::string>& texts);
void ReadSampling(JsonFields& fields, v1::SamplingParameters& sampling);
// Stop conditions, except the token limit, which has several names.
void ReadStopping(JsonFields& fields, v1::StopConditions& stopping);
void ReadTandem(JsonFields& fields, v1::GenerateRequest& request);
// The request's priority in the queue, its fields about drafts, and those about its prompt as a whole.
void ReadPriority(JsonFields& fields, v1::GenerateRequest& request);
void ReadPrediction(JsonFields& fields, v1::GenerateRequest& request);
void ReadPromptOptions(JsonFields& fields, v1::GenerateRequest& request);
// Refuses fields of OpenAI and vLLM that would change an answer and are not supported, and accepts those that
// are for the caller's side or for services beside a model.
void RefuseOthers(JsonFields& fields);
void AcceptOthers(JsonFields& fields);

}  // namespace tandem::router
