#include "router/http/responses_request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"
#include "router/http/openai_constraint.h"
#include "router/http/openai_json.h"
#include "router/http/openai_messages.h"
#include "router/http/raw_json.h"
#include "router/http/responses_tools.h"
#include "router/serving/request.h"

namespace tandem::router {
namespace {

constexpr int64_t kMostOutputTokens = std::numeric_limits<int32_t>::max();

// Puts the items of a conversation into messages. Calls and reasoning belong to the assistant's message that
// they stand beside.
class InputReader {
 public:
  // `outer`: the fields of the body.
  InputReader(CompletionRequest& completion, const JsonFields& outer, v1::ChatPrompt& chat)
      : completion_(completion), outer_(outer), chat_(chat) {}

  absl::Status Read(const Json& input) {
    if (input.is_string()) {
      v1::ChatMessage& message = *chat_.add_messages();
      message.set_role("user");
      message.set_content(input.get<std::string>());
      return absl::OkStatus();
    }
    if (!input.is_array()) {
      return WithReason(absl::InvalidArgumentError("input: expected a string or a list of items"),
                        kInvalidType);
    }
    if (input.size() > static_cast<size_t>(kMaxChatMessages)) {
      return absl::InvalidArgumentError(
          absl::StrCat("input: ", input.size(), " items, expected at most ", kMaxChatMessages));
    }
    for (const Json& item : input) {
      if (item.is_object() && item.contains("id") && item["id"].is_string() &&
          item.value("type", Json()) != "item_reference") {
        ids_.insert(item["id"].get<std::string>());
      }
    }
    for (size_t i = 0; i < input.size(); ++i) {
      const int before = chat_.messages_size();
      place_ = absl::StrCat("input[", i, "]");
      TANDEM_RETURN_IF_ERROR(ReadItem(input[i], place_ + "."));
      if (chat_.messages_size() > before)
        completion_.names.Set(absl::StrCat("chat.messages[", before, "]"), place_);
    }
    return absl::OkStatus();
  }

 private:
  // The assistant's message that is being put together.
  v1::ChatMessage& Assistant() {
    if (!in_turn_) {
      v1::ChatMessage& message = *chat_.add_messages();
      message.set_role("assistant");
      in_turn_ = true;
    }
    return *chat_.mutable_messages()->rbegin();
  }

  // Of tools that run at a provider, and what it says of them.
  static bool IsHosted(absl::string_view type) {
    constexpr absl::string_view kHosted[] = {
        "web_search_call",      "file_search_call",      "code_interpreter_call", "image_generation_call",
        "computer_call",        "computer_call_output",  "mcp_list_tools",        "mcp_call",
        "mcp_approval_request", "mcp_approval_response", "tool_search_call",      "tool_search_output",
        "shell_call",           "shell_call_output",     "apply_patch_call",      "apply_patch_call_output"};
    return std::find(std::begin(kHosted), std::end(kHosted), type) != std::end(kHosted);
  }

  absl::Status ReadItem(const Json& json, const std::string& path) {
    JsonFields item(json, outer_, path);
    const std::string type = item.Text("type").value_or("message");
    if (IsHosted(type)) {
      completion_.ignored.LeaveOut(place_);
      item.IgnoreAll();
      return item.Finish();
    }
    const std::string id = item.Text("id").value_or("");
    item.Ignore("status");
    if (type == "message") {
      ReadMessage(item, path);
    } else if (type == "function_call" || type == "custom_tool_call") {
      ReadCall(item, type == "custom_tool_call");
    } else if (type == "local_shell_call") {
      ReadShellCall(item);
    } else if (type == "function_call_output" || type == "custom_tool_call_output" ||
               type == "local_shell_call_output") {
      in_turn_ = false;
      v1::ChatMessage& message = *chat_.add_messages();
      message.set_role("tool");
      message.set_tool_call_id(item.Text("call_id").value_or(id));
      for (const char* name : {"name", "namespace"}) item.Ignore(name);
      SetContent(item, "output", path, message);
    } else if (type == "reasoning") {
      item.Ignore("summary");
      item.Ignore("encrypted_content");
      ReadReasoning(item, path);
    } else if (type == "item_reference") {
      // What it refers to stands in the request as well, or nowhere.
      if (!ids_.contains(id)) completion_.ignored.LeaveOut(place_);
    } else if (type == "compaction" || type == "compaction_summary" || type == "context_compaction" ||
               type == "compaction_trigger") {
      // Only who has written it can read it.
      for (const char* name : {"encrypted_content", "created_by"}) item.Ignore(name);
      completion_.ignored.LeaveOut(place_);
    } else {
      item.Fail("type",
                absl::StrCat("found \"", PrintableText(type),
                             "\", expected message, reasoning, item_reference, compaction, or a call of a "
                             "function, a custom tool or local_shell, or the output of one"));
    }
    return item.Finish();
  }

  static bool HasContent(const v1::ChatMessage& message) {
    return message.has_content() || !message.content_parts().empty();
  }

  // A call in the namespace of its tool, and with a text in place of arguments.
  void ReadCall(JsonFields& item, bool custom) {
    v1::ToolCall& call = *Assistant().add_tool_calls();
    call.set_id(item.Text("call_id").value_or(""));
    const std::string name = item.Text("name").value_or("");
    if (name.empty()) item.Missing("name");
    call.set_name(NameInSpace(item.Text("namespace").value_or(""), name));
    call.set_arguments(custom ? ArgumentsOfInput(item.Text("input").value_or(""))
                              : item.Text("arguments").value_or(""));
    for (const char* ignored : {"async", "caller"}) item.Ignore(ignored);
  }

  void ReadShellCall(JsonFields& item) {
    v1::ToolCall& call = *Assistant().add_tool_calls();
    call.set_id(item.Text("call_id").value_or(""));
    call.set_name("local_shell");
    const Json* const action = item.Find("action");
    if (action == nullptr) return item.Missing("action");
    call.set_arguments(action->dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
  }

  void SetContent(JsonFields& item, const char* name, const std::string& path, v1::ChatMessage& message) {
    const Json* const content = item.Find(name);
    if (content == nullptr) return item.Missing(name);
    item.Update(ReadContent(*content, item, path + name, message));
  }

  void ReadMessage(JsonFields& item, const std::string& path) {
    const std::string role = item.Text("role").value_or("");
    if (role.empty()) item.Missing("role");
    item.Ignore("phase");
    // Behind reasoning or beside calls it is the same message; a second text is another one.
    if (role == "assistant" && in_turn_ && !HasContent(*chat_.messages().rbegin()))
      return SetContent(item, "content", path, Assistant());
    in_turn_ = false;
    if (role == "assistant") return SetContent(item, "content", path, Assistant());
    v1::ChatMessage& message = *chat_.add_messages();
    message.set_role(role == "developer" ? "system" : role);
    SetContent(item, "content", path, message);
  }

  void ReadReasoning(JsonFields& item, const std::string& path) {
    const Json* const content = item.Find("content");
    if (content == nullptr || content->empty()) return;
    if (!content->is_array()) return item.Fail("content", "expected a list of parts");
    in_turn_ = false;
    v1::ChatMessage& message = Assistant();
    for (size_t i = 0; i < content->size(); ++i) {
      JsonFields part((*content)[i], item, absl::StrCat(path, "content[", i, "]."));
      part.Ignore("type");
      *message.mutable_reasoning() += part.Text("text").value_or("");
      item.Update(part.Finish());
    }
  }

  CompletionRequest& completion_;
  const JsonFields& outer_;
  v1::ChatPrompt& chat_;
  std::set<std::string> ids_;  // Of the items that stand in the request.
  std::string place_;          // Of the item that is read.
  bool in_turn_ = false;       // The last message is the assistant's, and more may belong to it.
};

// `text`: the form of the output.
void ReadTextField(absl::string_view body, JsonFields& fields, FieldNames& names,
                   v1::GenerateRequest& request) {
  const Json* const text = fields.Find("text");
  if (text == nullptr) return;
  JsonFields own(*text, fields, "text.");
  own.IgnoreAloud("verbosity");
  if (const Json* const format = own.Find("format")) ReadTextFormat(body, *format, own, names, request);
  fields.Update(own.Finish());
}

// `reasoning`: how much of it there is to be, for the template.
void ReadReasoning(JsonFields& fields, OrderedJson& variables) {
  const Json* const reasoning = fields.Find("reasoning");
  if (reasoning == nullptr) return;
  JsonFields own(*reasoning, fields, "reasoning.");
  const auto effort = ReadReasoningEffort(own, "effort");
  if (effort.has_value() && !variables.contains("reasoning_effort")) variables["reasoning_effort"] = *effort;
  for (const char* name : {"summary", "generate_summary"}) own.Ignore(name);
  fields.Update(own.Finish());
}

// What the answer repeats, with OpenAI's defaults.
OrderedJson EchoOf(absl::string_view body) {
  OrderedJson echoed = {{"instructions", nullptr},
                        {"max_output_tokens", nullptr},
                        {"parallel_tool_calls", true},
                        {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                        {"temperature", nullptr},
                        {"text", {{"format", {{"type", "text"}}}}},
                        {"tool_choice", "auto"},
                        {"tools", OrderedJson::array()},
                        {"top_p", nullptr},
                        {"user", nullptr},
                        {"metadata", OrderedJson::object()}};
  for (auto& [name, value] : echoed.items()) {
    const absl::string_view text = RawMember(body, name);
    if (text.empty() || text == "null") continue;
    value = OrderedJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  }
  return echoed;
}

// Refuses what would need stored responses, what is not supported, and what has another name here.
void RefuseForeign(JsonFields& fields) {
  fields.Refuse("background", "expected false: responses are not kept");
  for (const char* name : {"access_programs", "background_options", "image"})
    fields.Refuse(name, "not supported");
  for (const char* name : {"previous_response_id", "conversation", "prompt"})
    fields.Refuse(name, "not supported: the server stores no responses");
  fields.Refuse("truncation", "expected \"disabled\"", "disabled");
  fields.Refuse("top_logprobs", "not supported; chat completions have them", 0);
  fields.Refuse("max_tool_calls", "not supported");
  fields.Refuse("n", "expected 1: a response is one output", 1);
  fields.Refuse("messages", "expected input");
  fields.Refuse("response_format", "expected text.format");
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    fields.Refuse(name, "expected max_output_tokens");
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadResponse(absl::string_view body, bool refuse_unknown) {
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  CompletionRequest completion{.api = HttpApi::kResponses, .names = FieldNames(HttpApi::kResponses)};
  JsonFields fields(json, refuse_unknown ? nullptr : &completion.ignored);
  v1::GenerateRequest request;
  v1::ChatPrompt& chat = *request.mutable_chat();
  if (auto model = fields.Text("model")) request.set_model(*std::move(model));
  if (const auto instructions = fields.Text("instructions")) {
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role("system");
    message.set_content(*instructions);
    completion.names.Set("chat.messages[0]", "instructions");
  }
  if (const Json* const input = fields.Find("input")) {
    fields.Update(InputReader(completion, fields, chat).Read(*input));
  } else {
    fields.Missing("input");
  }
  ReadResponsesTools(body, fields, completion, chat);
  chat.set_parse_output(true);
  OrderedJson variables = ReadTemplateVariables(body, fields);
  ReadReasoning(fields, variables);
  if (!variables.empty()) chat.set_template_variables(variables.dump());
  ReadSampling(fields, *request.mutable_sampling());
  ReadTandem(fields, request);
  ReadPriority(fields, request);
  ReadPrediction(fields, request);
  ReadPromptOptions(fields, request);
  ReadTextField(body, fields, completion.names, request);
  if (const auto most = fields.Integer("max_output_tokens", 0, kMostOutputTokens))
    request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(*most));
  ReadStopping(fields, *request.mutable_stopping());
  completion.stream = fields.Flag("stream").value_or(false);
  RefuseForeign(fields);
  RefuseOthers(fields);
  AcceptOthers(fields);
  for (const char* name : {"include", "stream_options", "context_management"}) fields.Ignore(name);
  TANDEM_RETURN_IF_ERROR(fields.Finish());
  completion.echoed = EchoOf(body);
  completion.prompts.push_back(std::move(request));
  return completion;
}

}  // namespace tandem::router
