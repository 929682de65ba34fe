#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "router/http/responses_tools.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// The content, reasoning and calls of a chat's output so far, in the format of chat completions.
class ParsedChoice {
 public:
  // `origins`: of the request's tools; it outlives this. `is_stream`: whether anybody is told of the pieces.
  ParsedChoice(const ToolOrigins& origins, bool is_stream) : origins_(&origins), is_stream_(is_stream) {}

  // The beginning of the answer, where it goes on with what the assistant has said.
  void set_content(std::string content) { content_ = std::move(content); }
  const std::string& content() const { return content_; }
  bool has_calls() const { return !calls_.empty(); }

  // Adds a piece. Returns what a stream says of it, deltas of a message: none while an input is not certain,
  // and none without a stream.
  std::vector<OrderedJson> Add(const v1::OutputDelta& delta);
  // The output is over: likewise.
  std::vector<OrderedJson> Finish();
  // Whether the last call's arguments are the beginning of a JSON object, whose end is missing.
  bool LastCallIsCut() const;
  void DropLastCall() { calls_.pop_back(); }

  // The message of a chat completion.
  OrderedJson Message() const;

 private:
  struct Call {
    v1::ToolCall call;
    bool custom = false;  // It takes a text: `input`, out of the arguments.
    CustomInput reader;
    std::string input;
  };

  const ToolOrigins* origins_;
  bool is_stream_;
  std::string content_;
  std::string reasoning_;
  std::vector<Call> calls_;
};

// Whether arguments are the beginning of a JSON object, whose end is missing.
bool IsCut(absl::string_view arguments);

}  // namespace tandem::router
