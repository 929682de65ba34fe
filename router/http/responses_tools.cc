#include "router/http/responses_tools.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "router/models/tool_json.h"

namespace tandem::router {
namespace {

constexpr char kInputSchema[] =
    R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false})";

// A member of an object that is a text; empty if it is none.
std::string MemberText(const OrderedJson& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::Status At(absl::string_view path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", problem));
}

class ToolReader {
 public:
  ToolReader(CompletionRequest& completion, v1::ChatPrompt& chat) : completion_(completion), chat_(chat) {}

  absl::Status ReadList(const OrderedJson& tools, const std::string& path, const std::string& space) {
    if (!tools.is_array()) return At(path, "expected a list of tools");
    for (size_t i = 0; i < tools.size(); ++i)
      TANDEM_RETURN_IF_ERROR(Read(tools[i], absl::StrCat(path, "[", i, "]"), space));
    return absl::OkStatus();
  }

 private:
  absl::Status Read(const OrderedJson& tool, const std::string& path, const std::string& space) {
    if (!tool.is_object()) return At(path, "expected an object");
    const std::string type = MemberText(tool, "type");
    if (type.empty()) return At(path + ".type", "expected a text");
    if (type == "namespace") {
      if (!space.empty()) return At(path + ".type", "found \"namespace\" within a namespace");
      const std::string name = MemberText(tool, "name");
      if (name.empty()) return At(path + ".name", "missing");
      if (!tool.contains("tools")) return At(path + ".tools", "missing");
      return ReadList(tool["tools"], path + ".tools", name);
    }
    if (type == "function") {
      TANDEM_RETURN_IF_ERROR(ReadTool(tool, path, *chat_.add_tools()));
      Name(space, /*custom=*/false);
    } else if (type == "custom") {
      TANDEM_RETURN_IF_ERROR(ReadCustom(tool, path, *chat_.add_tools()));
      Name(space, /*custom=*/true);
    } else {
      completion_.left_out.push_back(path);
    }
    return absl::OkStatus();
  }

  // Gives the last tool its name for the target.
  void Name(const std::string& space, bool custom) {
    v1::Tool& tool = *chat_.mutable_tools()->rbegin();
    if (space.empty() && !custom) return;
    const std::string name = tool.name();
    tool.set_name(NameInSpace(space, name));
    completion_.origins[tool.name()] = {.name = name, .space = space, .custom = custom};
  }

  static absl::Status ReadCustom(const OrderedJson& json, const std::string& path, v1::Tool& tool) {
    tool.set_name(MemberText(json, "name"));
    if (tool.name().empty()) return At(path + ".name", "missing");
    tool.set_description(MemberText(json, "description"));
    tool.set_parameters(kInputSchema);
    const auto format = json.find("format");
    if (format == json.end() || format->is_null()) return absl::OkStatus();
    const std::string type = MemberText(*format, "type");
    if (type == "text") return absl::OkStatus();
    if (type != "grammar")
      return At(path + ".format.type",
                absl::StrCat("found \"", PrintableText(type), "\", expected \"text\" or \"grammar\""));
    const std::string syntax = MemberText(*format, "syntax");
    const std::string definition = MemberText(*format, "definition");
    if (definition.empty()) return At(path + ".format.definition", "missing");
    if (syntax == "lark") {
      tool.mutable_input()->set_lark(definition);
    } else if (syntax == "regex") {
      tool.mutable_input()->set_regex(definition);
    } else {
      return At(path + ".format.syntax",
                absl::StrCat("found \"", PrintableText(syntax), "\", expected \"lark\" or \"regex\""));
    }
    // What it is held to, the target had better know.
    tool.set_description(
        absl::StrCat(tool.description(), tool.description().empty() ? "" : "\n\n", "The input follows this ",
                     syntax == "lark" ? "Lark grammar" : "regular expression", ":\n", definition));
    return absl::OkStatus();
  }

  CompletionRequest& completion_;
  v1::ChatPrompt& chat_;
};

// {"type": "allowed_tools", "mode": ..., "tools": [...]}: the others are not offered.
absl::Status KeepAllowed(const OrderedJson& choice, v1::ChatPrompt& chat) {
  const std::string mode = MemberText(choice, "mode");
  if (mode != "auto" && mode != "required")
    return At("tool_choice.mode", "expected \"auto\" or \"required\"");
  const auto list = choice.find("tools");
  if (list == choice.end() || !list->is_array()) return At("tool_choice.tools", "expected a list of tools");
  std::set<std::string> names;
  for (const OrderedJson& tool : *list)
    names.insert(NameInSpace(MemberText(tool, "namespace"), MemberText(tool, "name")));
  auto& tools = *chat.mutable_tools();
  tools.erase(std::remove_if(tools.begin(), tools.end(),
                             [&names](const v1::Tool& tool) { return !names.contains(tool.name()); }),
              tools.end());
  chat.mutable_tool_choice()->set_mode(mode == "auto" ? v1::ToolChoice::MODE_AUTO
                                                      : v1::ToolChoice::MODE_REQUIRED);
  return absl::OkStatus();
}

absl::Status ReadAgentsChoice(const OrderedJson& choice, v1::ChatPrompt& chat) {
  const std::string type = MemberText(choice, "type");
  if (type == "allowed_tools") return KeepAllowed(choice, chat);
  if (type == "custom" || (type == "function" && choice.contains("namespace"))) {
    const std::string name = MemberText(choice, "name");
    if (name.empty()) return At("tool_choice.name", "missing");
    chat.mutable_tool_choice()->set_name(NameInSpace(MemberText(choice, "namespace"), name));
    return absl::OkStatus();
  }
  return ReadToolChoice(choice, "tool_choice", *chat.mutable_tool_choice());
}

OrderedJson MemberOf(absl::string_view body, const char* name) {
  const OrderedJson whole = OrderedJson::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const auto found = whole.find(name);
  return found == whole.end() ? OrderedJson() : *found;
}

}  // namespace

void ReadResponsesTools(absl::string_view body, JsonFields& fields, CompletionRequest& completion,
                        v1::ChatPrompt& chat) {
  if (fields.Find("tools") != nullptr)
    fields.Update(ToolReader(completion, chat).ReadList(MemberOf(body, "tools"), "tools", ""));
  if (fields.Find("tool_choice") != nullptr)
    fields.Update(ReadAgentsChoice(MemberOf(body, "tool_choice"), chat));
  v1::ToolChoice& choice = *chat.mutable_tool_choice();
  const std::optional<bool> parallel = fields.Flag("parallel_tool_calls");
  choice.set_single_call(parallel == false && !chat.tools().empty() &&
                         choice.mode() != v1::ToolChoice::MODE_NONE);
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
