#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/http/answer_writer.h"
#include "router/http/field_names.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "router/http/server/http_message.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// A status as an answer in Anthropic's format: {"type": "error", "error": {"type", "message"}}. `names`: as
// ErrorAnswer has them.
HttpAnswer MessagesErrorAnswer(const absl::Status& status, const FieldNames* names = nullptr);
// The same with the status and the head of `answer`, which is in OpenAI's format.
HttpAnswer InMessagesForm(HttpAnswer answer, const absl::Status& status, const FieldNames* names = nullptr);

// Writes answers of /v1/messages. An output is a list of blocks, in the order in which the target wrote them.
//
//   message_start, ping
//   for each block: content_block_start, content_block_delta..., content_block_stop
//   message_delta, message_stop; or error
class MessagesAnswer final : public AnswerWriter {
 public:
  MessagesAnswer(const CompletionRequest& request, std::string id);

  std::string OnEvent(size_t choice, const v1::GenerateResponse& event,
                      const PromptEncoder& encoder) override;
  std::string Ending() override;
  std::string Failure(const absl::Status& status) override;
  OrderedJson Whole() override;
  HttpAnswer Refusal(const absl::Status& status, const FieldNames& names) override {
    return MessagesErrorAnswer(status, &names);
  }

 private:
  enum class Kind : uint8_t { kText, kThinking, kToolUse };
  struct Block {
    Kind kind;
    std::string text;  // Of a tool's use: its arguments.
    std::string id;
    std::string name;
  };

  void OnDelta(const v1::OutputDelta& delta, std::string& out);
  void EndBlock(std::string& out);
  std::string Event(OrderedJson event) const;
  OrderedJson Message() const;
  OrderedJson Usage() const;
  // With its content, or without as it begins.
  static OrderedJson BlockJson(const Block& block, bool is_done);
  void SetEnd(OrderedJson& json) const;

  const CompletionRequest& request_;
  const std::string id_;
  v1::GenerationStarted started_;
  v1::GenerationFinished finished_;
  std::vector<Block> blocks_;
  bool in_block_ = false;
};

}  // namespace tandem::router
