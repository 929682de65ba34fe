#include "router/http/messages_request.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "router/http/openai_constraint.h"
#include "router/http/openai_json.h"
#include "router/http/openai_messages.h"
#include "router/serving/request.h"

namespace tandem::router {
namespace {

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

// The member at a place of the body, its objects' members in the order in which they stand there.
class OrderedBody {
 public:
  explicit OrderedBody(absl::string_view body)
      : whole_(OrderedJson::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false)) {}

  std::string TextAt(const std::string& pointer) const {
    const OrderedJson::json_pointer place(pointer);
    return whole_.contains(place) ? whole_.at(place).dump() : "";
  }

 private:
  const OrderedJson whole_;
};

// Turns the messages of a conversation into those of a chat. Results of tools stand in messages of the user
// there, and in messages of their own here.
class ConversationReader {
 public:
  ConversationReader(const OrderedBody& body, v1::ChatPrompt& chat) : body_(body), chat_(chat) {}

  absl::Status Read(const Json& messages) {
    if (!messages.is_array() || messages.empty())
      return absl::InvalidArgumentError("messages: expected a list of messages, at least one");
    if (messages.size() > static_cast<size_t>(kMaxChatMessages)) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages: ", messages.size(), " of them, expected at most ", kMaxChatMessages));
    }
    for (size_t i = 0; i < messages.size(); ++i) TANDEM_RETURN_IF_ERROR(ReadMessage(messages[i], i));
    // A text of the assistant at the end is the beginning of the answer.
    const v1::ChatMessage& last = *chat_.messages().rbegin();
    chat_.set_continue_final_message(last.role() == "assistant" && last.tool_calls().empty() &&
                                     !last.content().empty());
    return absl::OkStatus();
  }

 private:
  absl::Status ReadMessage(const Json& json, size_t index) {
    const std::string path = absl::StrCat("messages[", index, "].");
    JsonFields message(json, path);
    const std::string role = message.Text("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system") {
      message.Fail("role",
                   absl::StrCat("found \"", PrintableText(role), "\", expected \"user\" or \"assistant\""));
    }
    const Json* const content = message.Find("content");
    if (content == nullptr) message.Fail("content", "missing");
    TANDEM_RETURN_IF_ERROR(message.Finish());
    if (content->is_string()) {
      Add(role).set_content(content->get<std::string>());
      return absl::OkStatus();
    }
    if (!content->is_array())
      return absl::InvalidArgumentError(absl::StrCat(path, "content: expected a string or a list of blocks"));
    // Where its text goes; a message of calls or of nothing has none.
    v1::ChatMessage* open = role == "assistant" ? &Add(role) : nullptr;
    for (size_t i = 0; i < content->size(); ++i) {
      JsonFields block((*content)[i], absl::StrCat(path, "content[", i, "]."));
      ReadBlock(block, role, absl::StrCat("/messages/", index, "/content/", i), open);
      block.Ignore("cache_control");
      TANDEM_RETURN_IF_ERROR(block.Finish());
    }
    if (content->empty() && open == nullptr) Add(role);
    return absl::OkStatus();
  }

  void ReadBlock(JsonFields& block, const std::string& role, const std::string& pointer,
                 v1::ChatMessage*& open) {
    const std::string type = block.Text("type").value_or("");
    const bool assistant = role == "assistant";
    if (type == "text") {
      if (open == nullptr) open = &Add(role);
      *open->mutable_content() += RequiredText(block, "text");
      block.Ignore("citations");
    } else if (type == "tool_use" && assistant) {
      v1::ToolCall& call = *open->add_tool_calls();
      call.set_id(RequiredText(block, "id"));
      call.set_name(RequiredText(block, "name"));
      const Json* const input = block.Find("input");
      if (input != nullptr && !input->is_object()) block.Fail("input", "expected an object");
      call.set_arguments(input == nullptr ? "{}" : body_.TextAt(pointer + "/input"));
      block.Ignore("caller");
    } else if (type == "tool_result" && !assistant) {
      open = nullptr;
      ReadResult(block);
    } else if (type == "thinking" && assistant) {
      *open->mutable_reasoning() += block.Text("thinking").value_or("");
      block.Ignore("signature");
    } else if (type == "redacted_thinking" && assistant) {
      block.Ignore("data");  // Nobody here can read it.
    } else {
      block.Fail("type", absl::StrCat("found \"", PrintableText(type), "\", expected ",
                                      assistant ? "text, tool_use, thinking or redacted_thinking"
                                                : "text or tool_result"));
    }
  }

  void ReadResult(JsonFields& block) {
    v1::ChatMessage& message = Add("tool");
    message.set_tool_call_id(RequiredText(block, "tool_use_id"));
    block.Flag("is_error");  // The content says what went wrong.
    const Json* const content = block.Find("content");
    if (content == nullptr) return;
    absl::StatusOr<std::string> text = ContentOf(*content, block.path() + "content");
    block.Update(text.status());
    if (text.ok()) message.set_content(*std::move(text));
  }

  static std::string RequiredText(JsonFields& block, const char* name) {
    std::optional<std::string> text = block.Text(name);
    if (!text.has_value()) block.Fail(name, "missing");
    return std::move(text).value_or("");
  }

  v1::ChatMessage& Add(const std::string& role) {
    v1::ChatMessage& message = *chat_.add_messages();
    message.set_role(role);
    return message;
  }

  const OrderedBody& body_;
  v1::ChatPrompt& chat_;
};

// Tools that the service of Anthropic runs, or whose form only its models know, have a type of their own.
void ReadOfferedTools(const OrderedBody& body, JsonFields& fields, CompletionRequest& completion,
                      v1::ChatPrompt& chat) {
  const Json* const tools = fields.Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return fields.Fail("tools", "expected a list of tools");
  for (size_t i = 0; i < tools->size(); ++i) {
    JsonFields tool((*tools)[i], absl::StrCat("tools[", i, "]."));
    if (tool.Text("type").value_or("custom") != "custom") {
      completion.left_out.push_back(absl::StrCat("tools[", i, "]"));
      fields.Update(tool.status());
      continue;
    }
    v1::Tool& added = *chat.add_tools();
    added.set_name(tool.Text("name").value_or(""));
    if (added.name().empty()) tool.Fail("name", "missing");
    added.set_description(tool.Text("description").value_or(""));
    const Json* const schema = tool.Find("input_schema");
    if (schema == nullptr || !schema->is_object()) {
      tool.Fail("input_schema", "expected a JSON schema, an object");
    } else {
      added.set_parameters(body.TextAt(absl::StrCat("/tools/", i, "/input_schema")));
    }
    added.set_strict(tool.Flag("strict").value_or(false));
    for (const char* name :
         {"cache_control", "input_examples", "defer_loading", "allowed_callers", "eager_input_streaming"}) {
      tool.Ignore(name);
    }
    fields.Update(tool.Finish());
  }
}

void ReadChoiceOfTool(JsonFields& fields, v1::ChatPrompt& chat) {
  const Json* const given = fields.Find("tool_choice");
  if (given == nullptr) return;
  JsonFields own(*given, "tool_choice.");
  v1::ToolChoice& choice = *chat.mutable_tool_choice();
  const std::string type = own.Text("type").value_or("");
  const std::string name = own.Text("name").value_or("");
  if (type == "auto") {
    choice.set_mode(v1::ToolChoice::MODE_AUTO);
  } else if (type == "any") {
    choice.set_mode(v1::ToolChoice::MODE_REQUIRED);
  } else if (type == "none") {
    choice.set_mode(v1::ToolChoice::MODE_NONE);
  } else if (type == "tool") {
    if (name.empty()) own.Fail("name", "missing");
    choice.set_name(name);
  } else {
    own.Fail("type", absl::StrCat("found \"", PrintableText(type), "\", expected auto, any, tool or none"));
  }
  const bool single = own.Flag("disable_parallel_tool_use").value_or(false);
  choice.set_single_call(single && type != "none" && !chat.tools().empty());
  fields.Update(own.Finish());
}

// `thinking` switches reasoning on or off where the template has such a switch.
void ReadThinking(JsonFields& fields, OrderedJson& variables) {
  const Json* const thinking = fields.Find("thinking");
  if (thinking == nullptr) return;
  JsonFields own(*thinking, "thinking.");
  const std::string type = own.Text("type").value_or("");
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    own.Fail("type",
             absl::StrCat("found \"", PrintableText(type), "\", expected enabled, adaptive or disabled"));
  }
  own.Ignore("budget_tokens");
  own.Ignore("display");
  if (!variables.contains("enable_thinking")) variables["enable_thinking"] = type != "disabled";
  fields.Update(own.Finish());
}

// The prompt: what both endpoints have.
void ReadPrompt(const OrderedBody& ordered, absl::string_view body, JsonFields& fields,
                CompletionRequest& completion, v1::ChatPrompt& chat) {
  if (const Json* const system = fields.Find("system")) {
    absl::StatusOr<std::string> text = ContentOf(*system, "system");
    fields.Update(text.status());
    if (text.ok() && !text->empty()) {
      v1::ChatMessage& message = *chat.add_messages();
      message.set_role("system");
      message.set_content(*std::move(text));
    }
  }
  if (const Json* const messages = fields.Find("messages")) {
    fields.Update(ConversationReader(ordered, chat).Read(*messages));
  } else {
    fields.Fail("messages", "missing");
  }
  ReadOfferedTools(ordered, fields, completion, chat);
  ReadChoiceOfTool(fields, chat);
  chat.set_parse_output(true);
  OrderedJson variables = ReadTemplateVariables(body, fields);
  ReadThinking(fields, variables);
  if (!variables.empty()) chat.set_template_variables(variables.dump());
  fields.Refuse("mcp_servers", "not supported: expected none", Json::array());
  fields.Refuse("thread", "not supported: the server stores no messages");
  // What they are for is on the side of a service that keeps things, or of its bill.
  for (const char* name :
       {"betas", "billing_policy", "cache_control", "compaction", "container", "context_management",
        "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo", "metadata", "service_tier",
        "speed", "user_profile_id", "workspace_id"}) {
    fields.Ignore(name);
  }
}

// `output_config`, with the format of the output; `output_format` is its older name.
void ReadOutputConfig(absl::string_view body, JsonFields& fields, v1::GenerateRequest& request) {
  if (const Json* const config = fields.Find("output_config")) {
    JsonFields own(*config, "output_config.");
    own.Ignore("effort");
    own.Ignore("task_budget");
    if (const Json* const format = own.Find("format"))
      ReadSchemaFormat(body, "output_config.format", *format, own, request);
    fields.Update(own.Finish());
  }
  if (const Json* const format = fields.Find("output_format"))
    ReadSchemaFormat(body, "output_format", *format, fields, request);
}

void ReadStopSequences(JsonFields& fields, v1::StopConditions& stopping) {
  const Json* const sequences = fields.Find("stop_sequences");
  if (sequences == nullptr) return;
  if (!sequences->is_array()) return fields.Fail("stop_sequences", "expected a list of strings");
  for (const Json& sequence : *sequences) {
    if (!sequence.is_string()) return fields.Fail("stop_sequences", "expected a list of strings");
    stopping.add_stop(sequence.get<std::string>());
  }
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadMessagesRequest(absl::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  const OrderedBody ordered(body);
  JsonFields fields(json);
  CompletionRequest completion{.api = CompletionRequest::Api::kMessages};
  v1::GenerateRequest request;
  if (auto model = fields.Text("model")) request.set_model(*std::move(model));
  ReadPrompt(ordered, body, fields, completion, *request.mutable_chat());
  ReadSampling(fields, *request.mutable_sampling());
  ReadStopping(fields, *request.mutable_stopping());
  ReadStopSequences(fields, *request.mutable_stopping());
  ReadTandem(fields, request);
  ReadPriority(fields, request);
  ReadOutputConfig(body, fields, request);
  const auto most = fields.Integer("max_tokens", 1, kMostTokens);
  if (!most.has_value()) fields.Fail("max_tokens", "missing");
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(most.value_or(0)));
  // Agents ask for as many as Anthropic's models can say.
  request.mutable_stopping()->set_fit_max_tokens(true);
  completion.stream = fields.Flag("stream").value_or(false);
  TANDEM_RETURN_IF_ERROR(fields.Finish());
  completion.prompts.push_back(std::move(request));
  return completion;
}

absl::StatusOr<v1::TokenizeRequest> ReadCountTokens(absl::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  const OrderedBody ordered(body);
  JsonFields fields(json);
  CompletionRequest completion;
  v1::TokenizeRequest request;
  if (auto model = fields.Text("model")) request.set_model(*std::move(model));
  ReadPrompt(ordered, body, fields, completion, *request.mutable_chat());
  for (const char* name : {"output_config", "output_format", "max_tokens"}) fields.Ignore(name);
  TANDEM_RETURN_IF_ERROR(fields.Finish());
  return request;
}

}  // namespace tandem::router
