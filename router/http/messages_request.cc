#include "router/http/messages_request.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"
#include "router/http/field_names.h"
#include "router/http/openai_constraint.h"
#include "router/http/openai_json.h"
#include "router/http/openai_messages.h"
#include "router/http/raw_json.h"
#include "router/serving/request.h"

namespace tandem::router {
namespace {

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

// Members of blocks that have no effect here.
constexpr const char* kOfBlocks[] = {"cache_control", "citations"};

// Turns the messages of a conversation into those of a chat. Results of tools stand in messages of the user
// there, and in messages of their own here.
class ConversationReader {
 public:
  // `outer`: the fields of the body.
  ConversationReader(const JsonFields& outer, CompletionRequest& completion, v1::ChatPrompt& chat)
      : outer_(outer), completion_(completion), chat_(chat) {}

  // `text`: how the messages are written.
  absl::Status Read(const Json& messages, absl::string_view text) {
    if (!messages.is_array() || messages.empty()) {
      return WithReason(absl::InvalidArgumentError("messages: expected a list of messages, at least one"),
                        messages.is_array() ? kInvalidValue : kInvalidType);
    }
    if (messages.size() > static_cast<size_t>(kMaxChatMessages)) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages: ", messages.size(), " of them, expected at most ", kMaxChatMessages));
    }
    const std::vector<absl::string_view> texts = RawElements(text);
    for (size_t i = 0; i < messages.size(); ++i)
      TANDEM_RETURN_IF_ERROR(ReadMessage(messages[i], texts[i], i));
    // A text of the assistant at the end is the beginning of the answer.
    const v1::ChatMessage& last = *chat_.messages().rbegin();
    const bool has_text =
        !last.content().empty() || std::any_of(last.content_parts().begin(), last.content_parts().end(),
                                               [](const std::string& part) { return !part.empty(); });
    chat_.set_continue_final_message(last.role() == "assistant" && last.tool_calls().empty() && has_text);
    return absl::OkStatus();
  }

 private:
  absl::Status ReadMessage(const Json& json, absl::string_view text, size_t index) {
    place_ = absl::StrCat("messages[", index, "]");
    JsonFields message(json, outer_, place_ + ".");
    const std::string role = message.Text("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system") {
      message.Fail("role",
                   absl::StrCat("found \"", PrintableText(role), "\", expected \"user\" or \"assistant\""));
    }
    const Json* const content = message.Find("content");
    if (content == nullptr) message.Missing("content");
    TANDEM_RETURN_IF_ERROR(message.Finish());
    if (content->is_string()) {
      Add(role, place_).set_content(content->get<std::string>());
      return absl::OkStatus();
    }
    if (!content->is_array()) {
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat(place_, ".content: expected a string or a list of blocks")),
          kInvalidType);
    }
    // Where its text goes; a message of calls or of nothing has none.
    v1::ChatMessage* open = role == "assistant" ? &Add(role, place_) : nullptr;
    const std::vector<absl::string_view> texts = RawElements(RawMember(text, "content"));
    for (size_t i = 0; i < content->size(); ++i) {
      JsonFields block((*content)[i], message, absl::StrCat(place_, ".content[", i, "]."));
      ReadBlock(block, role, texts[i], open);
      for (const char* name : kOfBlocks) block.Ignore(name);
      TANDEM_RETURN_IF_ERROR(block.Finish());
    }
    if (content->empty()) (open == nullptr ? Add(role, place_) : *open).set_content("");
    return absl::OkStatus();
  }

  // `text`: how the block is written. `open`: where a text of the role goes. A result of a tool ends that
  // message.
  void ReadBlock(JsonFields& block, const std::string& role, absl::string_view text, v1::ChatMessage*& open) {
    const std::string type = block.Text("type").value_or("");
    const bool assistant = role == "assistant";
    if (type == "text") {
      if (open == nullptr) open = &Add(role, place_);
      open->add_content_parts(RequiredText(block, "text"));
    } else if (type == "tool_use" && assistant) {
      ReadUse(block, text, *open);
    } else if (type == "tool_result" && !assistant) {
      open = nullptr;
      ReadResult(block);
    } else if (type == "thinking" && assistant) {
      *open->mutable_reasoning() += block.Text("thinking").value_or("");
      block.Ignore("signature");
    } else if (assistant && IsHosted(type)) {
      completion_.ignored.LeaveOut(absl::StripSuffix(block.path(), "."));
      block.IgnoreAll();
    } else if (type == "redacted_thinking" && assistant) {
      block.Ignore("data");  // Nobody here can read it.
    } else {
      block.Fail("type", absl::StrCat("found \"", PrintableText(type), "\", expected ",
                                      assistant ? "text, tool_use, thinking or redacted_thinking"
                                                : "text or tool_result"));
    }
  }

  // A call that Anthropic's service has run, or what came of it.
  static bool IsHosted(absl::string_view type) {
    return type == "server_tool_use" || type == "mcp_tool_use" || absl::EndsWith(type, "_tool_result");
  }

  void ReadUse(JsonFields& block, absl::string_view text, v1::ChatMessage& message) {
    v1::ToolCall& call = *message.add_tool_calls();
    call.set_id(RequiredText(block, "id"));
    call.set_name(RequiredText(block, "name"));
    const Json* const input = block.Find("input");
    if (input != nullptr && !input->is_object()) block.FailType("input", *input, "an object");
    call.set_arguments(input == nullptr ? "{}" : CompactJson(RawMember(text, "input")));
    block.Ignore("caller");
  }

  void ReadResult(JsonFields& block) {
    v1::ChatMessage& message = Add("tool", absl::StripSuffix(block.path(), "."));
    message.set_tool_call_id(RequiredText(block, "tool_use_id"));
    block.Flag("is_error");  // The content says what went wrong.
    const Json* const content = block.Find("content");
    if (content == nullptr) return message.set_content("");
    block.Update(ReadContent(*content, block, block.path() + "content", message, kOfBlocks));
  }

  static std::string RequiredText(JsonFields& block, const char* name) {
    std::optional<std::string> text = block.Text(name);
    if (!text.has_value()) block.Missing(name);
    return std::move(text).value_or("");
  }

  // Adds a message that the client knows by `place`.
  v1::ChatMessage& Add(const std::string& role, absl::string_view place) {
    completion_.names.Set(absl::StrCat("chat.messages[", chat_.messages_size(), "]"), place);
    v1::ChatMessage& message = *chat_.add_messages();
    message.set_role(role);
    return message;
  }

  const JsonFields& outer_;
  CompletionRequest& completion_;
  v1::ChatPrompt& chat_;
  std::string place_;  // Of the message that is read.
};

// Tools that the service of Anthropic runs, or whose form only its models know, have a type of their own.
void ReadOfferedTools(absl::string_view body, JsonFields& fields, CompletionRequest& completion,
                      v1::ChatPrompt& chat) {
  const Json* const tools = fields.Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return fields.FailType("tools", *tools, "a list of tools");
  const std::vector<absl::string_view> texts = RawElements(RawMember(body, "tools"));
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string place = absl::StrCat("tools[", i, "]");
    JsonFields tool((*tools)[i], fields, place + ".");
    if (tool.Text("type").value_or("custom") != "custom") {
      completion.ignored.LeaveOut(place);
      fields.Update(tool.status());
      continue;
    }
    const std::string ours = absl::StrCat("chat.tools[", chat.tools_size(), "]");
    completion.names.Set(ours, place);
    completion.names.Set(ours + ".parameters", place + ".input_schema");
    v1::Tool& added = *chat.add_tools();
    added.set_name(tool.Text("name").value_or(""));
    if (added.name().empty()) tool.Missing("name");
    added.set_description(tool.Text("description").value_or(""));
    const Json* const schema = tool.Find("input_schema");
    if (schema == nullptr) {
      tool.Missing("input_schema");
    } else if (!schema->is_object()) {
      tool.FailType("input_schema", *schema, "a JSON schema, an object");
    } else {
      added.set_parameters(CompactJson(RawMember(texts[i], "input_schema")));
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
  JsonFields own(*given, fields, "tool_choice.");
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
    if (name.empty()) own.Missing("name");
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
  JsonFields own(*thinking, fields, "thinking.");
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
void ReadPrompt(absl::string_view body, JsonFields& fields, CompletionRequest& completion,
                v1::ChatPrompt& chat) {
  if (const Json* const system = fields.Find("system")) {
    v1::ChatMessage message;
    fields.Update(ReadContent(*system, fields, "system", message, kOfBlocks));
    if (!message.content().empty() || !message.content_parts().empty()) {
      message.set_role("system");
      *chat.add_messages() = std::move(message);
      completion.names.Set("chat.messages[0]", "system");
    }
  }
  if (const Json* const messages = fields.Find("messages")) {
    fields.Update(ConversationReader(fields, completion, chat).Read(*messages, RawMember(body, "messages")));
  } else {
    fields.Missing("messages");
  }
  ReadOfferedTools(body, fields, completion, chat);
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
void ReadOutputConfig(absl::string_view body, JsonFields& fields, FieldNames& names,
                      v1::GenerateRequest& request) {
  if (const Json* const config = fields.Find("output_config")) {
    JsonFields own(*config, fields, "output_config.");
    own.Ignore("effort");
    own.Ignore("task_budget");
    if (const Json* const format = own.Find("format"))
      ReadSchemaFormat(body, "output_config.format", *format, own, names, request);
    fields.Update(own.Finish());
  }
  if (const Json* const format = fields.Find("output_format"))
    ReadSchemaFormat(body, "output_format", *format, fields, names, request);
}

// Behind ReadStopping, which reads the name that the other APIs have.
void ReadStopSequences(JsonFields& fields, FieldNames& names, v1::StopConditions& stopping) {
  const Json* const sequences = fields.Find("stop_sequences");
  if (sequences == nullptr) {
    if (!stopping.stop().empty()) names.Set("stopping.stop", "stop");
    return;
  }
  if (!stopping.stop().empty())
    return fields.Fail("stop_sequences", "set, and stop as well; expected one of them");
  ReadTexts(fields, "stop_sequences", *stopping.mutable_stop());
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadMessagesRequest(absl::string_view body, bool refuse_unknown) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  CompletionRequest completion{.api = HttpApi::kMessages, .names = FieldNames(HttpApi::kMessages)};
  JsonFields fields(json, refuse_unknown ? nullptr : &completion.ignored);
  v1::GenerateRequest request;
  if (auto model = fields.Text("model")) request.set_model(*std::move(model));
  ReadPrompt(body, fields, completion, *request.mutable_chat());
  ReadSampling(fields, *request.mutable_sampling());
  ReadStopping(fields, *request.mutable_stopping());
  ReadStopSequences(fields, completion.names, *request.mutable_stopping());
  ReadTandem(fields, request);
  ReadPriority(fields, request);
  ReadPromptOptions(fields, request);
  ReadOutputConfig(body, fields, completion.names, request);
  const auto most = fields.Integer("max_tokens", 1, kMostTokens);
  if (!most.has_value()) fields.Missing("max_tokens");
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(most.value_or(0)));
  // Agents ask for as many as Anthropic's models can say.
  request.mutable_stopping()->set_fit_max_tokens(true);
  completion.stream = fields.Flag("stream").value_or(false);
  TANDEM_RETURN_IF_ERROR(fields.Finish());
  completion.prompts.push_back(std::move(request));
  return completion;
}

absl::StatusOr<CompletionRequest> ReadCountTokens(absl::string_view body, bool refuse_unknown) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  CompletionRequest completion{.api = HttpApi::kMessages, .names = FieldNames(HttpApi::kMessages)};
  JsonFields fields(json, refuse_unknown ? nullptr : &completion.ignored);
  v1::GenerateRequest request;
  if (auto model = fields.Text("model")) request.set_model(*std::move(model));
  ReadPrompt(body, fields, completion, *request.mutable_chat());
  for (const char* name : {"output_config", "output_format", "max_tokens"}) fields.Ignore(name);
  TANDEM_RETURN_IF_ERROR(fields.Finish());
  completion.prompts.push_back(std::move(request));
  return completion;
}

}  // namespace tandem::router
