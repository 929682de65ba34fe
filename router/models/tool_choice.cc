#include "router/models/tool_choice.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/chat/output_format.h"
#include "common/model/config/strict_json.h"
#include "nlohmann/json.hpp"

namespace tandem::router {
namespace {

constexpr char kAnyObject[] = R"({"type":"object","additionalProperties":true})";
constexpr char kNoArguments[] = R"({"type":"object","properties":{}})";

template <typename... Parts>
absl::Status InvalidTool(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Those of tool servers have dots, slashes and colons.
bool IsToolName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_-./:", c);
         });
}

std::string ShownName(absl::string_view name) {
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxToolNameBytes)), "\"");
}

absl::Status ValidateChoice(const v1::ChatPrompt& chat, const std::set<absl::string_view>& names,
                            bool constrained) {
  const v1::ToolChoice& choice = chat.tool_choice();
  if (!v1::ToolChoice_Mode_IsValid(choice.mode())) {
    return InvalidTool("chat.tool_choice.mode: ", static_cast<int>(choice.mode()), ", expected 0 to 3");
  }
  if (!choice.name().empty()) {
    if (choice.mode() == v1::ToolChoice::MODE_AUTO || choice.mode() == v1::ToolChoice::MODE_NONE)
      return InvalidTool("chat.tool_choice.name: set, expected mode REQUIRED or none with it");
    if (!names.contains(choice.name()))
      return InvalidTool("chat.tool_choice.name: ", ShownName(choice.name()), ", expected one of chat.tools");
  }
  if (choice.mode() == v1::ToolChoice::MODE_REQUIRED && names.empty())
    return InvalidTool("chat.tool_choice.mode: REQUIRED, but there are no tools");
  if (choice.single_call() && choice.mode() == v1::ToolChoice::MODE_NONE)
    return InvalidTool("chat.tool_choice.single_call: set, but mode is NONE");
  if (constrained && IsForced(choice))
    return InvalidTool("chat.tool_choice: constrains the output, as constraint does; expected one of them");
  return absl::OkStatus();
}

absl::Status CheckParameters(const v1::Tool& tool, int index) {
  if (tool.parameters().empty()) return absl::OkStatus();
  const std::string field = absl::StrCat("chat.tools[", index, "].parameters");
  TANDEM_ASSIGN_OR_RETURN(
      const nlohmann::json schema,
      ParseStrictJson(tool.parameters(), field, 0, {.max_depth = 48, .max_values = 100'000}));
  if (!schema.is_object()) return InvalidTool(field, ": expected a JSON schema, an object");
  const auto type = schema.find("type");
  if (type != schema.end() && *type != "object")
    return InvalidTool(field, ".type: found ", PrintableValue(*type), ", expected \"object\"");
  return absl::OkStatus();
}

// The schema of a tool's arguments, which are an object even where it does not say so.
std::string SchemaOfArguments(const v1::Tool& tool) {
  if (tool.parameters().empty()) return kNoArguments;
  const auto schema = nlohmann::json::parse(tool.parameters(), nullptr, /*allow_exceptions=*/false);
  if (!schema.is_object() || schema.contains("type")) return tool.parameters();
  // Inserted into the text, which keeps the order of its members and all digits.
  std::string text = tool.parameters();
  text.insert(text.find('{') + 1, schema.empty() ? R"("type":"object")" : R"("type":"object",)");
  return text;
}

bool IsStrict(const v1::Tool& tool) {
  return tool.strict() || tool.has_input();
}

// Calls are held to something although the target calls by itself.
bool HoldsCalls(const v1::ChatPrompt& chat) {
  return chat.tool_choice().single_call() || std::any_of(chat.tools().begin(), chat.tools().end(),
                                                         [](const v1::Tool& tool) { return IsStrict(tool); });
}

}  // namespace

bool IsForced(const v1::ToolChoice& choice) {
  return choice.mode() == v1::ToolChoice::MODE_REQUIRED || !choice.name().empty();
}

bool OffersTools(const v1::ChatPrompt& chat) {
  return !chat.tools().empty() && chat.tool_choice().mode() != v1::ToolChoice::MODE_NONE;
}

absl::Status ValidateTools(const v1::ChatPrompt& chat, bool constrained) {
  if (chat.tools_size() > kMaxTools) {
    return InvalidTool("chat.tools: ", chat.tools_size(), " of them, expected at most ", kMaxTools);
  }
  std::set<absl::string_view> names;
  for (int i = 0; i < chat.tools_size(); ++i) {
    const v1::Tool& tool = chat.tools(i);
    if (!IsToolName(tool.name())) {
      return InvalidTool("chat.tools[", i, "].name: ", ShownName(tool.name()), ", expected 1 to ",
                         kMaxToolNameBytes, " letters, digits or any of _ - . / :");
    }
    if (!names.insert(tool.name()).second)
      return InvalidTool("chat.tools[", i, "].name: ", ShownName(tool.name()), " a second time");
    if (IsStrict(tool) && constrained && OffersTools(chat)) {
      return InvalidTool("chat.tools[", i, tool.has_input() ? "].input" : "].strict",
                         ": constrains the output, as constraint does; expected one of them");
    }
  }
  if (constrained && OffersTools(chat) && chat.tool_choice().single_call())
    return InvalidTool("chat.tool_choice.single_call: constrains the output, as constraint does");
  return ValidateChoice(chat, names, constrained);
}

absl::StatusOr<std::optional<v1::Constraint>> ConstraintOfTools(const v1::ChatPrompt& chat,
                                                                const ServedModel& model) {
  for (int i = 0; i < chat.tools_size(); ++i) TANDEM_RETURN_IF_ERROR(CheckParameters(chat.tools(i), i));
  if (!OffersTools(chat)) return std::nullopt;
  const bool forced = IsForced(chat.tool_choice());
  if (!model.chat_traits.takes_tools && model.output_format.calls == CallSyntax::kNone) {
    return absl::FailedPreconditionError(
        "chat.tools: the model's chat template does not support tools, and its output format has no calls");
  }
  if (!forced && !HoldsCalls(chat)) return std::nullopt;
  if (model.output_format.calls == CallSyntax::kNone) {
    return absl::FailedPreconditionError(
        "chat.tool_choice: outputs cannot be forced into the format of this model's calls (output_format)");
  }
  v1::Constraint constraint;
  v1::StructuralTags& tags = *constraint.mutable_structural_tags();
  for (const v1::Tool& tool : chat.tools()) {
    if (!chat.tool_choice().name().empty() && tool.name() != chat.tool_choice().name()) continue;
    const CallFrame frame = FrameOfCall(model.output_format, tool.name());
    if (tags.triggers().empty()) tags.add_triggers(frame.trigger);
    v1::StructuralTag& tag = *tags.add_tags();
    tag.set_begin(frame.begin);
    tag.set_end(frame.end);
    if (tool.has_input()) {
      tag.set_begin(absl::StrCat(frame.begin, R"({"input": )"));
      *tag.mutable_content()->mutable_json_string() = tool.input();
      tag.set_end(absl::StrCat("}", frame.end));
      continue;
    }
    const bool held = forced || tool.strict();
    tag.mutable_content()->mutable_json_schema()->set_schema(held ? SchemaOfArguments(tool) : kAnyObject);
  }
  tags.set_at_least_one(forced);
  // A function that was named is called once. A forced call without a mark is the only one of its output.
  const bool single = chat.tool_choice().single_call() || !chat.tool_choice().name().empty() ||
                      (forced && model.output_format.calls == CallSyntax::kJson);
  tags.set_stop_after_first(single);
  tags.set_only_tags(forced && !single);
  return constraint;
}

absl::Status ToolError(const v1::ChatPrompt& chat, const absl::Status& status) {
  absl::string_view rest = status.message();
  if (!absl::IsInvalidArgument(status) || !absl::ConsumePrefix(&rest, "constraint")) return status;
  size_t index = 0;
  // Found when it came, or when it was compiled.
  absl::ConsumePrefix(&rest, ".structural_tags");
  if (absl::ConsumePrefix(&rest, ": tags[") && absl::SimpleAtoi(rest.substr(0, rest.find(']')), &index)) {
    rest.remove_prefix(rest.find(']') + 1);
    absl::ConsumePrefix(&rest, ".content");
    for (int i = 0; i < chat.tools_size(); ++i) {
      const std::string& named = chat.tool_choice().name();
      if (named.empty() ? static_cast<size_t>(i) == index : chat.tools(i).name() == named)
        return InvalidTool("chat.tools[", i, chat.tools(i).has_input() ? "].input" : "].parameters", rest);
    }
  }
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "constraint");
  return InvalidTool("chat.tools", message);
}

}  // namespace tandem::router
