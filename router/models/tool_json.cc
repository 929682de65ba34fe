#include "router/models/tool_json.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem::router {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::Status At(absl::string_view path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", problem));
}

// A member that is a text; absent and null are the same, and empty.
absl::Status ReadText(const OrderedJson& object, const char* name, absl::string_view path,
                      std::string* text) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return absl::OkStatus();
  if (!found->is_string()) return At(absl::StrCat(path, ".", name), "expected a string");
  *text = found->get<std::string>();
  return absl::OkStatus();
}

absl::Status CheckMembers(const OrderedJson& object, const std::string& path,
                          std::initializer_list<absl::string_view> known, const OnUnknownMember& on_unknown) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string place = absl::StrCat(path, ".", PrintableText(name));
    if (on_unknown == nullptr) return At(place, "there is no such field");
    on_unknown(place);
  }
  return absl::OkStatus();
}

// The common part of a function's description and a call: "type" is "function", and the other members are in
// "function" or next to it.
absl::StatusOr<const OrderedJson*> FunctionOf(const OrderedJson& json, const std::string& path,
                                              std::string* inner_path) {
  if (!json.is_object()) return At(path, "expected an object");
  std::string type;
  TANDEM_RETURN_IF_ERROR(ReadText(json, "type", path, &type));
  if (!type.empty() && type != "function")
    return At(path + ".type", absl::StrCat("found \"", PrintableText(type), "\", expected \"function\""));
  const auto found = json.find("function");
  const bool is_inside = found != json.end() && !found->is_null();
  const OrderedJson* function = is_inside ? &*found : &json;
  *inner_path = is_inside ? path + ".function" : path;
  if (!function->is_object()) return At(*inner_path, "expected an object");
  return function;
}

}  // namespace

absl::Status ReadTool(const OrderedJson& json, const std::string& path, v1::Tool& tool,
                      const OnUnknownMember& on_unknown) {
  std::string inner;
  TANDEM_ASSIGN_OR_RETURN(const OrderedJson* function, FunctionOf(json, path, &inner));
  if (function != &json) TANDEM_RETURN_IF_ERROR(CheckMembers(json, path, {"type", "function"}, on_unknown));
  TANDEM_RETURN_IF_ERROR(CheckMembers(
      *function, inner, {"type", "function", "name", "description", "parameters", "strict"}, on_unknown));
  TANDEM_RETURN_IF_ERROR(ReadText(*function, "name", inner, tool.mutable_name()));
  if (tool.name().empty()) return At(inner + ".name", "missing");
  TANDEM_RETURN_IF_ERROR(ReadText(*function, "description", inner, tool.mutable_description()));
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_null()) {
    if (!parameters->is_object()) return At(inner + ".parameters", "expected a JSON schema, an object");
    tool.set_parameters(parameters->dump());
  }
  const auto strict = function->find("strict");
  if (strict == function->end() || strict->is_null()) return absl::OkStatus();
  if (!strict->is_boolean()) return At(inner + ".strict", "expected true or false");
  tool.set_strict(strict->get<bool>());
  return absl::OkStatus();
}

absl::Status ReadTools(const OrderedJson& json, absl::string_view path, v1::ChatPrompt& chat,
                       const OnUnknownMember& on_unknown) {
  if (!json.is_array()) return At(path, "expected a list of functions");
  for (size_t i = 0; i < json.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(ReadTool(json[i], absl::StrCat(path, "[", i, "]"), *chat.add_tools(), on_unknown));
  }
  return absl::OkStatus();
}

absl::Status ReadToolChoice(const OrderedJson& json, absl::string_view path, v1::ToolChoice& choice,
                            const OnUnknownMember& on_unknown) {
  if (json.is_object()) {
    std::string inner;
    TANDEM_ASSIGN_OR_RETURN(const OrderedJson* function, FunctionOf(json, std::string(path), &inner));
    TANDEM_RETURN_IF_ERROR(CheckMembers(*function, inner, {"type", "function", "name"}, on_unknown));
    TANDEM_RETURN_IF_ERROR(ReadText(*function, "name", inner, choice.mutable_name()));
    return choice.name().empty() ? At(inner + ".name", "missing") : absl::OkStatus();
  }
  const std::string mode = json.is_string() ? json.get<std::string>() : "";
  if (mode == "auto") {
    choice.set_mode(v1::ToolChoice::MODE_AUTO);
  } else if (mode == "none") {
    choice.set_mode(v1::ToolChoice::MODE_NONE);
  } else if (mode == "required") {
    choice.set_mode(v1::ToolChoice::MODE_REQUIRED);
  } else {
    return At(path, "expected \"none\", \"auto\", \"required\" or a function");
  }
  return absl::OkStatus();
}

absl::Status ReadToolCall(const OrderedJson& json, const std::string& path, v1::ToolCall& call,
                          const OnUnknownMember& on_unknown) {
  if (json.is_object() && json.value("function", OrderedJson()).is_null())
    return At(path + ".function", "missing");
  std::string inner;
  TANDEM_ASSIGN_OR_RETURN(const OrderedJson* function, FunctionOf(json, path, &inner));
  // The index is that of a stream's pieces, which clients send back.
  TANDEM_RETURN_IF_ERROR(CheckMembers(json, path, {"id", "index", "type", "function"}, on_unknown));
  TANDEM_RETURN_IF_ERROR(CheckMembers(*function, inner, {"name", "arguments"}, on_unknown));
  TANDEM_RETURN_IF_ERROR(ReadText(json, "id", path, call.mutable_id()));
  TANDEM_RETURN_IF_ERROR(ReadText(*function, "name", inner, call.mutable_name()));
  if (call.name().empty()) return At(inner + ".name", "missing");
  const auto arguments = function->find("arguments");
  if (arguments == function->end() || !arguments->is_object())
    return ReadText(*function, "arguments", inner, call.mutable_arguments());
  call.set_arguments(arguments->dump());
  return absl::OkStatus();
}

absl::Status ReadToolCalls(const OrderedJson& json, absl::string_view path, v1::ChatMessage& message,
                           const OnUnknownMember& on_unknown) {
  if (!json.is_array()) return At(path, "expected a list of calls");
  for (size_t i = 0; i < json.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(
        ReadToolCall(json[i], absl::StrCat(path, "[", i, "]"), *message.add_tool_calls(), on_unknown));
  }
  return absl::OkStatus();
}

}  // namespace tandem::router
