#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/answer_writer.h"
#include "router/http/field_names.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "router/http/parsed_choice.h"
#include "router/http/server/http_message.h"
#include "router/http/token_logprobs.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// A status as an answer in OpenAI's format: {"error": {"message", "type", "param", "code"}}, with the
// matching HTTP status, and Retry-After if the status says how long to wait. `names`: those of the request's
// fields, for an error that names them as tandem.v1 does; null: it names the client's own.
HttpAnswer ErrorAnswer(const absl::Status& status, const FieldNames* names = nullptr);
// The same without the head, for a stream that has begun.
OrderedJson ErrorJson(const absl::Status& status, const FieldNames* names = nullptr);
int HttpStatusOf(const absl::Status& status);

HttpAnswer JsonAnswer(const OrderedJson& json);
// One server-sent event. `json` is written on one line, with invalid UTF-8 replaced. `name`: of the event;
// may be empty.
std::string ServerSentEvent(const OrderedJson& json, absl::string_view name = "");

// A generation's object `tandem`: the seed, and statistics of speculation.
OrderedJson TandemJson(const v1::GenerationStarted& started, const v1::SpeculationStats& stats);

// Writes answers of /v1/chat/completions and /v1/completions. A stream ends with the usage, if requested, and
// the end mark.
class CompletionAnswer final : public AnswerWriter {
 public:
  CompletionAnswer(const CompletionRequest& request, std::string id, int64_t created);

  std::string OnEvent(size_t choice, const v1::GenerateResponse& event,
                      const PromptEncoder& encoder) override;
  std::string Ending() override;
  std::string Failure(const absl::Status& status) override;
  OrderedJson Whole() override;
  HttpAnswer Refusal(const absl::Status& status, const FieldNames& names) override {
    return ErrorAnswer(status, &names);
  }

 private:
  struct Choice {
    Choice(const ToolOrigins& origins, bool is_stream) : parsed(origins, is_stream) {}

    ParsedChoice parsed;  // Of a chat; its text is here and not below.
    std::string text;
    std::vector<uint32_t> tokens;
    uint64_t num_tokens = 0;      // So far.
    OrderedJson logprobs;         // Entries, in the API's format; null if not requested.
    OrderedJson prompt_logprobs;  // In vLLM's format; null if not requested.
    std::optional<EchoOffsets> echo;
    size_t echoed_characters = 0;  // Of `text`.
    CharacterCount characters;     // Of the output's tokens, with or without a text that was cut.
    bool told_prompt = false;      // A stream's event had the prompt's tokens.
    std::string finish_reason;     // Empty until it is finished.
    std::string matched_stop;
    v1::Usage usage;
    v1::SpeculationStats speculation;
    v1::GenerationStarted started;
  };

  // The frame of an answer or of an event, without choices.
  OrderedJson Frame(bool chunk) const;
  OrderedJson Usage() const;
  // The field `usage` of an event before the last: null unless requested.
  OrderedJson UsageSoFar(size_t index) const;
  std::string OnStarted(size_t index, const v1::GenerationStarted& started, const PromptEncoder& encoder);
  std::string OnFinished(size_t index, const v1::GenerationFinished& finished);
  // Puts the prompt before the output, if the request asks for it.
  void BeginEcho(size_t index, const PromptEncoder& encoder);
  bool EchoesGivenText(size_t index) const;
  // How many tokens at the front of the choice's prompt the tokenizer has added. `tokens`: the first ones.
  size_t NumAdded(size_t index, const TokenIds& tokens, const PromptEncoder& encoder) const;
  // Adds pieces of a chat's output; returns what a stream says of them.
  std::vector<OrderedJson> Said(size_t index,
                                const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas);
  // The events for a chunk, or for text that was held back until the end. `said`: of a chat.
  std::string Pieces(size_t index, const std::string& text, std::vector<OrderedJson> said,
                     OrderedJson logprobs, const std::vector<uint32_t>& tokens);
  // An event with one choice. `said`: its delta or text.
  std::string Chunk(size_t index, OrderedJson said, OrderedJson logprobs, const std::vector<uint32_t>& tokens,
                    bool first);
  std::string LastChunk(size_t index) const;
  // Log probabilities of the chunk's tokens, in the API's format; null if not requested.
  OrderedJson Logprobs(size_t index, const v1::GenerationChunk& chunk, const PromptEncoder& encoder);
  // Adds a part of the prompt, for vLLM's field or for the echo. Returns the events to send.
  std::string AddPrompt(size_t index, const v1::PromptChunk& prompt, const PromptEncoder& encoder);
  // Log probabilities of a choice's prompt; all choices of a prompt show the same.
  const OrderedJson& PromptLogprobsOf(size_t choice) const {
    return choices_[choice - choice % request_.num_outputs].prompt_logprobs;
  }
  OrderedJson PromptTokensOf(size_t choice) const {
    const auto& ids = choices_[choice - choice % request_.num_outputs].started.prompt_token_ids();
    return std::vector<uint32_t>(ids.begin(), ids.end());
  }
  const v1::GenerateRequest& RequestOf(size_t choice) const {
    return request_.prompts[choice / request_.num_outputs];
  }
  bool EchoesLogprobs() const { return request_.echo && request_.logprobs.has_value() && !request_.chat(); }

  const CompletionRequest& request_;
  const std::string id_;
  const int64_t created_;
  std::string model_;
  std::vector<Choice> choices_;
};

// The model's name in answers: that of the adapter, if there is one.
inline const std::string& NameOfModel(const v1::GenerationStarted& started) {
  return started.adapter().empty() ? started.model() : started.adapter();
}

}  // namespace tandem::router
