#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/http/answer_writer.h"
#include "router/http/field_names.h"
#include "router/http/openai_answer.h"
#include "router/http/openai_request.h"
#include "router/http/responses_tools.h"
#include "router/http/server/http_message.h"

namespace tandem::router {

// Writes answers of /v1/responses. An output is a list of items, in the order in which the target wrote them.
//
//   response.created, response.in_progress
//   for each item: response.output_item.added, its parts and deltas, their ends, response.output_item.done
//   response.completed, .incomplete or .failed
class ResponsesAnswer final : public AnswerWriter {
 public:
  ResponsesAnswer(const CompletionRequest& request, std::string id, int64_t created);

  std::string OnEvent(size_t choice, const v1::GenerateResponse& event,
                      const PromptEncoder& encoder) override;
  std::string Ending() override;
  std::string Failure(const absl::Status& status) override;
  OrderedJson Whole() override;
  HttpAnswer Refusal(const absl::Status& status, const FieldNames& names) override {
    return ErrorAnswer(status, &names);
  }

 private:
  enum class Kind : uint8_t { kMessage, kReasoning, kCall, kCustomCall };
  struct Item {
    Kind kind;
    std::string id;
    std::string text;  // Of a call: its arguments, or the text that it takes.
    std::string call_id;
    ToolOrigin tool;    // Of a call: its name is the client's.
    CustomInput input;  // Of a call that takes a text.
  };

  void OnDelta(const v1::OutputDelta& delta, std::string& out);
  void AddText(const std::string& text, std::string& out);
  // Ends the current item, if there is one, and starts another.
  void BeginItem(Item item, std::string& out);
  void EndItem(std::string& out);
  OrderedJson ItemJson(const Item& item, bool is_done) const;
  static OrderedJson PartJson(const Item& item, const std::string& text);
  OrderedJson Response(const char* status) const;
  // A numbered event. `about_item`: it belongs to the current item, if there is one.
  std::string Event(const char* type, OrderedJson fields, bool about_item = true);
  const char* Status() const;

  const CompletionRequest& request_;
  const std::string id_;
  const int64_t created_;
  v1::GenerationStarted started_;
  v1::GenerationFinished finished_;
  std::vector<Item> items_;
  bool in_item_ = false;
  bool ended_ = false;  // What is last and a call may have been cut.
  uint64_t num_events_ = 0;
};

}  // namespace tandem::router
