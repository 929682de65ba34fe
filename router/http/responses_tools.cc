#include "router/http/responses_tools.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"
#include "router/http/field_names.h"
#include "router/http/openai_messages.h"
#include "router/http/raw_json.h"
#include "router/models/tool_json.h"

namespace tandem::router {
namespace {

constexpr char kInputSchema[] =
    R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false})";

void ReadGrammar(JsonFields& format, v1::Tool& tool) {
  const std::optional<std::string> syntax = format.OneOf("syntax", {"lark", "regex"});
  if (!syntax.has_value()) format.Missing("syntax");
  const std::string definition = format.Text("definition").value_or("");
  if (definition.empty()) format.Missing("definition");
  if (syntax == "lark") {
    tool.mutable_input()->set_lark(definition);
  } else {
    tool.mutable_input()->set_regex(definition);
  }
  // What it is held to, the target had better know.
  tool.set_description(
      absl::StrCat(tool.description(), tool.description().empty() ? "" : "\n\n", "The input follows this ",
                   syntax == "lark" ? "Lark grammar" : "regular expression", ":\n", definition));
}

// Turns the client's tools into functions, and knows where each of them stands in the request.
class ToolReader {
 public:
  // `outer`: the fields of the body.
  ToolReader(CompletionRequest& completion, const JsonFields& outer, v1::ChatPrompt& chat)
      : completion_(completion), outer_(outer), chat_(chat) {}

  // `text`: how the tools are written.
  absl::Status ReadList(const OrderedJson& tools, absl::string_view text, const std::string& path,
                        const std::string& space) {
    if (!tools.is_array()) {
      return WithReason(absl::InvalidArgumentError(absl::StrCat(path, ": expected a list of tools")),
                        kInvalidType);
    }
    const std::vector<absl::string_view> texts = RawElements(text);
    for (size_t i = 0; i < tools.size(); ++i)
      TANDEM_RETURN_IF_ERROR(Read(tools[i], texts[i], absl::StrCat(path, "[", i, "]"), space));
    return absl::OkStatus();
  }

  // Offers those alone whose names are among these.
  void Keep(const std::set<std::string>& names) {
    auto& tools = *chat_.mutable_tools();
    std::vector<std::string> places;
    for (int i = 0; i < tools.size(); ++i) {
      if (names.contains(tools[i].name())) places.push_back(places_[static_cast<size_t>(i)]);
    }
    tools.erase(std::remove_if(tools.begin(), tools.end(),
                               [&names](const v1::Tool& tool) { return !names.contains(tool.name()); }),
                tools.end());
    places_ = std::move(places);
  }

  // Says what the client calls the tools that are offered.
  void NameFields(FieldNames& names) const {
    for (size_t i = 0; i < places_.size(); ++i) {
      const std::string ours = absl::StrCat("chat.tools[", i, "]");
      names.Set(ours, places_[i]);
      names.Set(ours + ".input", places_[i] + ".format.definition");
    }
  }

 private:
  absl::Status Read(const OrderedJson& tool, absl::string_view text, const std::string& path,
                    const std::string& space) {
    const Json plain(tool);
    JsonFields fields(plain, outer_, path + ".");
    const std::optional<std::string> type = fields.Text("type");
    if (!type.has_value()) fields.Missing("type");
    TANDEM_RETURN_IF_ERROR(fields.status());
    if (type == "namespace") return ReadNamespace(tool, text, fields, space);
    if (type == "function") {
      TANDEM_RETURN_IF_ERROR(ReadTool(tool, path, *chat_.add_tools(), AddTo(outer_.ignored())));
      KeepSpelling(text, *chat_.mutable_tools()->rbegin());
      const Json* const nested = fields.Find("function");
      Add(nested == nullptr ? path : path + ".function", space, /*custom=*/false);
      return absl::OkStatus();
    }
    if (type != "custom") {
      completion_.ignored.LeaveOut(path);
      return absl::OkStatus();
    }
    ReadCustomTool(fields, *chat_.add_tools());
    Add(path, space, /*custom=*/true);
    return fields.Finish();
  }

  absl::Status ReadNamespace(const OrderedJson& tool, absl::string_view text, JsonFields& fields,
                             const std::string& space) {
    if (!space.empty()) fields.Fail("type", "found \"namespace\" within a namespace");
    const std::string name = fields.Text("name").value_or("");
    if (name.empty()) fields.Missing("name");
    fields.Ignore("description");
    if (fields.Find("tools") == nullptr) fields.Missing("tools");
    TANDEM_RETURN_IF_ERROR(fields.Finish());
    return ReadList(tool["tools"], RawMember(text, "tools"), fields.path() + "tools", name);
  }

  // Gives the last tool, which stands at `place`, its name for the target.
  void Add(const std::string& place, const std::string& space, bool custom) {
    places_.push_back(place);
    v1::Tool& tool = *chat_.mutable_tools()->rbegin();
    if (space.empty() && !custom) return;
    const std::string name = tool.name();
    tool.set_name(NameInSpace(space, name));
    completion_.origins[tool.name()] = {.name = name, .space = space, .custom = custom};
  }

  CompletionRequest& completion_;
  const JsonFields& outer_;
  v1::ChatPrompt& chat_;
  std::vector<std::string> places_;  // Of the tools of `chat`, in order.
};

void ReadAgentsChoice(const Json& choice, JsonFields& fields, FieldNames& names, ToolReader& tools,
                      v1::ToolChoice& read) {
  const auto is = [&choice](const char* type) {
    return choice.is_object() && choice.value("type", Json()) == type;
  };
  if (!is("allowed_tools") && !is("custom") && !(is("function") && choice.contains("namespace"))) {
    if (choice.is_object() && choice.contains("function"))
      names.Set("chat.tool_choice.name", "tool_choice.function.name");
    return fields.Update(ReadToolChoice(OrderedJson(choice), "tool_choice", read, AddTo(fields.ignored())));
  }
  JsonFields own(choice, fields, "tool_choice.");
  own.Ignore("type");
  if (is("allowed_tools")) {
    tools.Keep(ReadAllowedTools(own, read));
  } else {
    const std::string name = own.Text("name").value_or("");
    if (name.empty()) own.Missing("name");
    read.set_name(NameInSpace(own.Text("namespace").value_or(""), name));
  }
  fields.Update(own.Finish());
}

OrderedJson MemberOf(absl::string_view body, const char* name) {
  const absl::string_view text = RawMember(body, name);
  if (text.empty()) return OrderedJson();
  return OrderedJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

void ReadCustomTool(JsonFields& fields, v1::Tool& tool) {
  tool.set_name(fields.Text("name").value_or(""));
  if (tool.name().empty()) fields.Missing("name");
  tool.set_description(fields.Text("description").value_or(""));
  tool.set_parameters(kInputSchema);
  const Json* const format = fields.Find("format");
  if (format == nullptr) return;
  JsonFields own(*format, fields, fields.path() + "format.");
  const std::string type = own.Text("type").value_or("");
  const Json* const nested = type == "grammar" ? own.Find("grammar") : nullptr;
  if (nested != nullptr) {
    JsonFields grammar(*nested, own, own.path() + "grammar.");
    ReadGrammar(grammar, tool);
    own.Update(grammar.Finish());
  } else if (type == "grammar") {
    ReadGrammar(own, tool);
  } else if (type != "text") {
    own.Fail("type", absl::StrCat("found \"", PrintableText(type), "\", expected \"text\" or \"grammar\""));
  }
  fields.Update(own.Finish());
}

void ReadResponsesTools(absl::string_view body, JsonFields& fields, CompletionRequest& completion,
                        v1::ChatPrompt& chat) {
  ToolReader tools(completion, fields, chat);
  v1::ToolChoice& choice = *chat.mutable_tool_choice();
  if (fields.Find("tools") != nullptr)
    fields.Update(tools.ReadList(MemberOf(body, "tools"), RawMember(body, "tools"), "tools", ""));
  if (const Json* const given = fields.Find("tool_choice"); given != nullptr && fields.status().ok())
    ReadAgentsChoice(*given, fields, completion.names, tools, choice);
  tools.NameFields(completion.names);
  const std::optional<bool> parallel = fields.Flag("parallel_tool_calls");
  choice.set_single_call(parallel == false && !chat.tools().empty() &&
                         choice.mode() != v1::ToolChoice::MODE_NONE);
}

std::set<std::string> ReadAllowedTools(JsonFields& allowed, v1::ToolChoice& choice) {
  std::set<std::string> names;
  const std::optional<std::string> mode = allowed.OneOf("mode", {"auto", "required"});
  if (!mode.has_value()) allowed.Missing("mode");
  choice.set_mode(mode == "required" ? v1::ToolChoice::MODE_REQUIRED : v1::ToolChoice::MODE_AUTO);
  const Json* const list = allowed.Find("tools");
  if (list == nullptr) allowed.Missing("tools");
  if (list != nullptr && !list->is_array()) allowed.FailType("tools", *list, "a list of tools");
  for (size_t i = 0; allowed.status().ok() && i < list->size(); ++i) {
    JsonFields tool((*list)[i], allowed, absl::StrCat(allowed.path(), "tools[", i, "]."));
    tool.Ignore("type");
    const std::string space = tool.Text("namespace").value_or("");
    std::string name = tool.Text("name").value_or("");
    for (const char* const kind : {"function", "custom"}) {
      const Json* const nested = tool.Find(kind);
      if (nested == nullptr) continue;
      JsonFields inner(*nested, tool, absl::StrCat(tool.path(), kind, "."));
      name = inner.Text("name").value_or("");
      tool.Update(inner.Finish());
    }
    names.insert(NameInSpace(space, name));
    allowed.Update(tool.Finish());
  }
  return names;
}

std::string NameInSpace(absl::string_view space, absl::string_view name) {
  if (space.empty()) return std::string(name);
  return absl::StrCat(space, absl::EndsWith(space, "__") ? "" : "__", name);
}

std::string ArgumentsOfInput(absl::string_view input) {
  return OrderedJson{{"input", std::string(input)}}.dump(-1, ' ', /*ensure_ascii=*/false,
                                                         OrderedJson::error_handler_t::replace);
}

namespace {

// Where in arguments of the usual form their text begins: behind {"input": ". npos: they have another form;
// nullopt: more has to come.
std::optional<size_t> BeginOfText(absl::string_view arguments) {
  static constexpr absl::string_view kSpace = " \t\r\n";
  size_t at = 0;
  for (const absl::string_view part : {"{", "\"input\"", ":", "\""}) {
    at = std::min(arguments.find_first_not_of(kSpace, at), arguments.size());
    const absl::string_view rest = arguments.substr(at);
    if (rest.size() < part.size())
      return absl::StartsWith(part, rest) ? std::nullopt : std::optional<size_t>(std::string::npos);
    if (!absl::StartsWith(rest, part)) return std::string::npos;
    at += part.size();
  }
  return at;
}

// The length of what can be decoded of a JSON string's inside: no escape and no pair of them is cut.
// `ends`: its end is within.
size_t WholeLength(absl::string_view text, bool* ends) {
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '"') {
      *ends = true;
      return at;
    }
    if (text[at] != '\\') {
      ++at;
      continue;
    }
    const size_t length = at + 1 < text.size() && text[at + 1] == 'u' ? 6 : 2;
    if (at + length > text.size()) break;
    // A high surrogate waits for the low one.
    const bool high = length == 6 && (text[at + 2] == 'd' || text[at + 2] == 'D') &&
                      absl::StrContains("89abAB", text[at + 3]);
    if (high && at + 12 > text.size()) break;
    at += length;
  }
  return at;
}

}  // namespace

std::string CustomInput::Push(absl::string_view arguments) {
  if (state_ == State::kAfter) return "";
  absl::StrAppend(&held_, arguments);
  if (state_ == State::kBefore) {
    const std::optional<size_t> begin = BeginOfText(held_);
    // What has another form is known whole at the end alone.
    if (!begin.has_value() || *begin == std::string::npos) return "";
    held_.erase(0, *begin);
    state_ = State::kText;
  }
  bool ends = false;
  const size_t length = WholeLength(held_, &ends);
  const OrderedJson text = OrderedJson::parse(absl::StrCat("\"", held_.substr(0, length), "\""), nullptr,
                                              /*allow_exceptions=*/false);
  if (ends) state_ = State::kAfter;
  // An escape that there is not, from a target that is not held to it.
  std::string out = text.is_string() ? text.get<std::string>() : held_.substr(0, length);
  held_.erase(0, length);
  return out;
}

std::string CustomInput::Finish() {
  const std::string rest = std::exchange(held_, {});
  return std::exchange(state_, State::kAfter) == State::kAfter ? "" : rest;
}

}  // namespace tandem::router
