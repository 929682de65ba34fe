#include "router/models/tool_choice.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/models/tool_json.h"
#include "router/testing/letter_encoder.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

v1::ChatPrompt ChatOf(const std::string& text) {
  v1::ChatPrompt chat;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &chat)) << text;
  return chat;
}

std::string ProblemOf(const std::string& chat, bool constrained = false) {
  return std::string(ValidateTools(ChatOf(chat), constrained).message());
}

ServedModel ModelOf(const std::string& format) {
  ServedModel model = testing::LetterModel();
  model.output_format = *OutputFormatOf(format);
  return model;
}

TEST(ToolChoiceTest, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(ProblemOf(R"pb(tools { name: "f" }
                           tools { name: "g-2_X" }
                           tool_choice { name: "f" })pb"),
            "");
  EXPECT_EQ(ProblemOf(R"pb(tools { name: "f" strict: true })pb", false), "");
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "" })pb"),
              HasSubstr("chat.tools[0].name: \"\", expected 1 to 128"));
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "f" }
                             tools { name: "a b" })pb"),
              HasSubstr("chat.tools[1].name"));
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "f" }
                             tools { name: "f" })pb"),
              HasSubstr("a second time"));
  EXPECT_THAT(ProblemOf(R"pb(tool_choice { mode: MODE_REQUIRED })pb"),
              HasSubstr("chat.tool_choice.mode: REQUIRED"));
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "f" }
                             tool_choice { name: "g" })pb"),
              HasSubstr("chat.tool_choice.name: \"g\", expected one of"));
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "f" }
                             tool_choice { mode: MODE_AUTO name: "f" })pb"),
              HasSubstr("chat.tool_choice.name"));
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "f" }
                             tool_choice { mode: MODE_NONE single_call: true })pb"),
              HasSubstr("chat.tool_choice.single_call"));
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "f" }
                             tool_choice { mode: MODE_REQUIRED })pb",
                        true),
              HasSubstr("chat.tool_choice: constrains the output"));
  EXPECT_THAT(ProblemOf(R"pb(tools { name: "f" strict: true })pb", true), HasSubstr("chat.tools[0].strict"));
  EXPECT_EQ(ProblemOf(R"pb(tools { name: "f" strict: true }
                           tool_choice { mode: MODE_NONE })pb",
                      true),
            "");
  v1::ChatPrompt many;
  for (int i = 0; i <= kMaxTools; ++i) many.add_tools()->set_name(absl::StrCat("f", i));
  EXPECT_THAT(std::string(ValidateTools(many, false).message()), HasSubstr("chat.tools: 129 of them"));
}

TEST(ToolChoiceTest, SchemasAreOfObjects) {
  for (const auto& [parameters, problem] :
       {std::pair<std::string, std::string>{"{", "chat.tools[1].parameters: byte"},
        {"[]", "chat.tools[1].parameters: expected a JSON schema"},
        {R"({"type": "string"})", "chat.tools[1].parameters.type: found"}}) {
    v1::ChatPrompt chat = ChatOf(R"pb(tools { name: "f" }
                                      tools { name: "g" })pb");
    chat.mutable_tools(1)->set_parameters(parameters);
    EXPECT_THAT(std::string(ConstraintOfTools(chat, ModelOf("json")).status().message()), HasSubstr(problem));
  }
}

TEST(ToolChoiceTest, LeavesATargetThatCallsByItselfAlone) {
  EXPECT_FALSE(ConstraintOfTools(ChatOf(""), ModelOf("json"))->has_value());
  EXPECT_FALSE(ConstraintOfTools(ChatOf(R"pb(tools { name: "f" })pb"), ModelOf("none"))->has_value());
  const v1::ChatPrompt none = ChatOf(R"pb(tools { name: "f" strict: true }
                                          tool_choice { mode: MODE_NONE })pb");
  EXPECT_FALSE(ConstraintOfTools(none, ModelOf("hermes"))->has_value());
}

TEST(ToolChoiceTest, HoldsForcedCallsToTheirSchemas) {
  v1::ChatPrompt chat = ChatOf(
      R"pb(tools { name: "f" parameters: '{"type":"object"}' }
           tools { name: "g" }
           tool_choice { mode: MODE_REQUIRED })pb");
  v1::Constraint constraint = **ConstraintOfTools(chat, ModelOf("hermes"));
  v1::StructuralTags tags = constraint.structural_tags();
  EXPECT_THAT(tags.triggers(), ::testing::ElementsAre("<tool_call>"));
  ASSERT_EQ(tags.tags_size(), 2);
  EXPECT_EQ(tags.tags(0).begin(), "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
  EXPECT_EQ(tags.tags(0).end(), "}\n</tool_call>");
  EXPECT_EQ(tags.tags(0).content().json_schema().schema(), R"({"type":"object"})");
  EXPECT_TRUE(tags.at_least_one());
  EXPECT_FALSE(tags.stop_after_first());
  EXPECT_TRUE(tags.only_tags()) << "it ends after the calls";

  chat.mutable_tool_choice()->set_name("g");
  tags = (**ConstraintOfTools(chat, ModelOf("llama"))).structural_tags();
  ASSERT_EQ(tags.tags_size(), 1);
  EXPECT_EQ(tags.tags(0).begin(), R"({"name": "g", "parameters": )");
  EXPECT_TRUE(tags.stop_after_first());
  EXPECT_FALSE(tags.only_tags());

  // What follows a call that nothing marks is content: another call could not be told from it.
  chat.mutable_tool_choice()->clear_name();
  tags = (**ConstraintOfTools(chat, ModelOf("json"))).structural_tags();
  EXPECT_EQ(tags.tags_size(), 2);
  EXPECT_TRUE(tags.stop_after_first());
  EXPECT_FALSE(tags.only_tags());

  chat.mutable_tool_choice()->set_single_call(true);
  tags = (**ConstraintOfTools(chat, ModelOf("hermes"))).structural_tags();
  EXPECT_TRUE(tags.stop_after_first());
  EXPECT_FALSE(tags.only_tags());
}

TEST(ToolChoiceTest, HoldsStrictToolsAlone) {
  const v1::ChatPrompt chat = ChatOf(
      R"pb(tools { name: "f" strict: true parameters: '{"type":"object","required":["a"]}' }
           tools { name: "g" parameters: '{"type":"object"}' })pb");
  const v1::StructuralTags tags = (**ConstraintOfTools(chat, ModelOf("mistral"))).structural_tags();
  EXPECT_THAT(tags.tags(0).content().json_schema().schema(), HasSubstr("required"));
  EXPECT_THAT(tags.tags(1).content().json_schema().schema(), HasSubstr("additionalProperties"));
  EXPECT_FALSE(tags.at_least_one());
  EXPECT_FALSE(tags.only_tags());

  const v1::StructuralTags marked = (**ConstraintOfTools(chat, ModelOf("mistral-args"))).structural_tags();
  EXPECT_THAT(marked.triggers(), ::testing::ElementsAre("[TOOL_CALLS]"));
  EXPECT_EQ(marked.tags(1).begin(), "[TOOL_CALLS]g[ARGS]");
  EXPECT_EQ(marked.tags(1).end(), "");
}

TEST(ToolChoiceTest, RefusesWhatTheModelCannotDo) {
  const v1::ChatPrompt strict = ChatOf(R"pb(tools { name: "f" strict: true })pb");
  const v1::ChatPrompt forced = ChatOf(R"pb(tools { name: "f" }
                                            tool_choice { name: "f" })pb");
  ServedModel model = ModelOf("none");
  EXPECT_TRUE(absl::IsFailedPrecondition(ConstraintOfTools(strict, model).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(ConstraintOfTools(forced, model).status()));
  model = ModelOf("mistral");
  model.has_special_call_marks = true;
  EXPECT_TRUE(ConstraintOfTools(strict, model).ok());
  EXPECT_TRUE(ConstraintOfTools(forced, model).ok());
  // Tools that the template does not lay out are laid out in text, where the output format has calls.
  const v1::ChatPrompt free = ChatOf(R"pb(tools { name: "f" })pb");
  model.chat_traits.takes_tools = false;
  EXPECT_TRUE(ConstraintOfTools(free, model).ok());
  EXPECT_TRUE(ConstraintOfTools(forced, model).ok());
  model.output_format.calls = CallSyntax::kNone;
  EXPECT_TRUE(absl::IsFailedPrecondition(ConstraintOfTools(free, model).status()));
}

TEST(ToolChoiceTest, ArgumentsAreObjectsEvenIfTheSchemaDoesNotSaySo) {
  const ServedModel model = ModelOf("hermes");
  const auto schema_of = [&](const std::string& parameters) {
    v1::ChatPrompt chat = ChatOf(R"pb(tools { name: "f" strict: true })pb");
    chat.mutable_tools(0)->set_parameters(parameters);
    return (*ConstraintOfTools(chat, model))->structural_tags().tags(0).content().json_schema().schema();
  };
  EXPECT_EQ(schema_of("{}"), R"({"type":"object"})");
  EXPECT_EQ(schema_of(R"( {"required":["b"]})"), R"( {"type":"object","required":["b"]})");
  EXPECT_EQ(schema_of(R"({"a":1.50,"type":"object"})"), R"({"a":1.50,"type":"object"})");
  EXPECT_EQ(schema_of(""), R"({"type":"object","properties":{}})");
}

TEST(ToolChoiceTest, TellsVerifiersErrorsInTheRequestsWords) {
  v1::ChatPrompt chat = ChatOf(R"pb(tools { name: "f" }
                                    tools { name: "g" })pb");
  const auto told = [&](const std::string& message) {
    return std::string(ToolError(chat, absl::InvalidArgumentError(message)).message());
  };
  EXPECT_EQ(told("constraint.structural_tags: tags[1].content: #/not: not supported"),
            "chat.tools[1].parameters: #/not: not supported");
  EXPECT_EQ(told("constraint: tags[1].content: #/oneOf: x"), "chat.tools[1].parameters: #/oneOf: x");
  EXPECT_EQ(told("constraint: its compilation takes too long"), "chat.tools: its compilation takes too long");
  EXPECT_EQ(told("sampling.top_p: 2"), "sampling.top_p: 2");
  chat.mutable_tool_choice()->set_name("g");
  EXPECT_EQ(told("constraint.structural_tags: tags[0].content: #: x"), "chat.tools[1].parameters: #: x");
}

std::string ReadProblem(const std::string& json) {
  v1::ChatPrompt chat;
  return std::string(ReadTools(nlohmann::ordered_json::parse(json), "tools", chat).message());
}

TEST(ToolJsonTest, ReadsTools) {
  v1::ChatPrompt chat;
  ASSERT_TRUE(ReadTools(nlohmann::ordered_json::parse(R"([
      {"type": "function", "function": {"name": "f", "description": "does", "strict": true,
                                        "parameters": {"type": "object", "a": 1, "A": 2}}},
      {"type": "function", "name": "g", "parameters": null}])"),
                        "tools", chat)
                  .ok());
  EXPECT_EQ(chat.tools(0).parameters(), R"({"type":"object","a":1,"A":2})");
  EXPECT_EQ(chat.tools(0).description(), "does");
  EXPECT_TRUE(chat.tools(0).strict());
  EXPECT_EQ(chat.tools(1).name(), "g");
  EXPECT_EQ(ReadProblem("{}"), "tools: expected a list of functions");
  EXPECT_EQ(ReadProblem("[1]"), "tools[0]: expected an object");
  EXPECT_EQ(ReadProblem(R"([{"type": "web_search"}])"),
            "tools[0].type: found \"web_search\", expected \"function\"");
  EXPECT_EQ(ReadProblem(R"([{"function": {}}])"), "tools[0].function.name: missing");
  EXPECT_EQ(ReadProblem(R"([{"name": 3}])"), "tools[0].name: expected a string");
  EXPECT_EQ(ReadProblem(R"([{"name": "f", "parameter": 1}])"), "tools[0].parameter: there is no such field");
  EXPECT_EQ(ReadProblem(R"([{"name": "f", "parameters": []}])"),
            "tools[0].parameters: expected a JSON schema, an object");
}

TEST(ToolJsonTest, ReadsChoices) {
  const auto choice_of = [](const std::string& json) {
    v1::ToolChoice choice;
    const absl::Status status = ReadToolChoice(nlohmann::ordered_json::parse(json), "tool_choice", choice);
    return status.ok() ? choice.ShortDebugString() : std::string(status.message());
  };
  EXPECT_EQ(choice_of(R"("required")"), "mode: MODE_REQUIRED");
  EXPECT_EQ(choice_of(R"({"type": "function", "function": {"name": "f"}})"), "name: \"f\"");
  EXPECT_EQ(choice_of(R"({"type": "function", "name": "f"})"), "name: \"f\"");
  EXPECT_EQ(choice_of(R"({"type": "function"})"), "tool_choice.name: missing");
  EXPECT_THAT(choice_of("3"), HasSubstr("tool_choice: expected \"none\""));
}

TEST(ToolJsonTest, ReadsCalls) {
  v1::ChatMessage message;
  const auto calls = nlohmann::ordered_json::parse(
      R"([{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}])");
  ASSERT_TRUE(ReadToolCalls(calls, "tool_calls", message).ok());
  EXPECT_EQ(message.tool_calls(0).ShortDebugString(), R"(id: "x" name: "f" arguments: "{}")");
  const auto object =
      nlohmann::ordered_json::parse(R"([{"function": {"name": "f", "arguments": {"b": 1, "a": []}}}])");
  ASSERT_TRUE(ReadToolCalls(object, "tool_calls", message).ok());
  EXPECT_EQ(message.tool_calls(1).arguments(), R"({"b":1,"a":[]})");
  const auto list = nlohmann::ordered_json::parse(R"([{"function": {"name": "f", "arguments": []}}])");
  EXPECT_EQ(ReadToolCalls(list, "m", message).message(), "m[0].function.arguments: expected a string");
  const auto bare = nlohmann::ordered_json::parse(R"([{"id": "x"}])");
  EXPECT_EQ(ReadToolCalls(bare, "m", message).message(), "m[0].function: missing");
}

}  // namespace
}  // namespace tandem::router
