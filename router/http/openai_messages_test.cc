#include "router/http/openai_messages.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// What is read of a body with these fields; `problem`: its error.
v1::ChatPrompt Read(const std::string& fields, std::string* problem = nullptr) {
  const std::string body = absl::StrCat("{", fields, "}");
  const Json json = Json::parse(body);
  JsonFields read(json, /*ignored=*/nullptr);
  FieldNames names(HttpApi::kChat);
  v1::ChatPrompt chat;
  ToolOrigins origins;
  ReadChat(body, read, names, origins, chat);
  const absl::Status status = read.Finish();
  if (problem != nullptr) {
    *problem = std::string(status.message());
  } else {
    EXPECT_TRUE(status.ok()) << status;
  }
  return chat;
}

v1::ChatMessage Message(const std::string& content) {
  return Read(
             absl::StrCat(R"("messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}])",
                          content, "}]"))
      .messages(0);
}

TEST(OpenAiMessagesTest, ContentsStayAsTheClientSpellsThem) {
  EXPECT_FALSE(Message("").has_content());
  EXPECT_FALSE(Message(R"(, "content": null)").has_content());
  EXPECT_TRUE(Message(R"(, "content": "")").has_content());
  EXPECT_EQ(Message(R"(, "content": "a")").content(), "a");
  EXPECT_TRUE(Message(R"(, "content": [])").has_content());
  const v1::ChatMessage parts =
      Message(R"(, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}])");
  EXPECT_FALSE(parts.has_content());
  EXPECT_THAT(parts.content_parts(), ElementsAre("a", ""));
}

TEST(OpenAiMessagesTest, ArgumentsStayAsTheClientSpellsThem) {
  const v1::ChatPrompt chat = Read(
      R"("messages": [{"role": "assistant", "tool_calls": [
             {"id": "1", "function": {"name": "f", "arguments": "{ \"b\":1, \"a\":2.50 }"}}]}])");
  EXPECT_EQ(chat.messages(0).tool_calls(0).arguments(), R"({ "b":1, "a":2.50 })");
  // Some clients send the object that the text spells.
  const v1::ChatPrompt object = Read(
      R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [
             {"function": {"name": "f", "arguments": ""}},
             {"function": {"arguments": {"b": 1, "a": [2.50, "x y"]}, "name": "f"}}]}])");
  EXPECT_EQ(object.messages(1).tool_calls(0).arguments(), "");
  EXPECT_EQ(object.messages(1).tool_calls(1).arguments(), R"({"b":1,"a":[2.50,"x y"]})");
  std::string problem;
  Read(
      R"("messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}])",
      &problem);
  EXPECT_THAT(problem, StartsWith("messages[0].tool_calls[0].function.arguments: "));
}

TEST(OpenAiMessagesTest, AToolMayHaveNothingToSay) {
  for (const char* content : {"", R"(, "content": null)", R"(, "content": "")", R"(, "content": [])"}) {
    const v1::ChatPrompt chat =
        Read(absl::StrCat(R"("messages": [{"role": "tool", "tool_call_id": "1")", content, "}]"));
    EXPECT_TRUE(chat.messages(0).has_content()) << content;
    EXPECT_EQ(chat.messages(0).content(), "") << content;
  }
}

TEST(OpenAiMessagesTest, CallsOfToolsThatTakeATextHaveItAsAnArgument) {
  const v1::ChatPrompt chat = Read(
      R"("messages": [{"role": "assistant", "tool_calls": [
             {"id": "1", "type": "custom", "custom": {"name": "f", "input": "a\"\n"}}]}])");
  EXPECT_EQ(chat.messages(0).tool_calls(0).name(), "f");
  EXPECT_EQ(chat.messages(0).tool_calls(0).arguments(), R"({"input":"a\"\n"})");
}

TEST(OpenAiMessagesTest, PartsAreTexts) {
  const v1::ChatMessage message =
      Message(R"(, "content": ["a", {"type": "refusal", "refusal": "no"}, {"text": "b"}])");
  EXPECT_THAT(message.content_parts(), ElementsAre("a", "no", "b"));
  std::string problem;
  Read(R"("messages": [{"role": "user", "content": [{"type": "refusal", "text": "no"}]}])", &problem);
  EXPECT_THAT(problem, StartsWith("messages[0].content[0].refusal: missing"));
}

TEST(OpenAiMessagesTest, AChoiceMayAllowSomeTools) {
  const std::string tools =
      R"("messages": [{"role": "user", "content": "a"}], "tools": [
             {"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "g"},
             {"type": "function", "function": {"name": "h"}}], "tool_choice": {"type": "allowed_tools", "allowed_tools": )";
  const v1::ChatPrompt chat = Read(tools + R"({"mode": "required", "tools": [
      {"type": "function", "function": {"name": "h"}}, {"type": "function", "name": "g"}]}})");
  ASSERT_EQ(chat.tools_size(), 2);
  EXPECT_EQ(chat.tools(0).name(), "g");
  EXPECT_EQ(chat.tools(1).name(), "h");
  EXPECT_EQ(chat.tool_choice().mode(), v1::ToolChoice::MODE_REQUIRED);
  const std::pair<const char*, const char*> kWrong[] = {
      {"null}", "tool_choice.allowed_tools: missing"},
      {R"({"mode": "none", "tools": []}})", "tool_choice.allowed_tools.mode: found \"none\""},
      {R"({"mode": "auto"}})", "tool_choice.allowed_tools.tools: missing"},
      {R"({"mode": "auto", "tools": [{"function": {"name": 1}}]}})",
       "tool_choice.allowed_tools.tools[0].function.name: found 1"},
  };
  for (const auto& [wrong, expected] : kWrong) {
    std::string problem;
    Read(tools + wrong, &problem);
    EXPECT_THAT(problem, StartsWith(expected));
  }
}

TEST(OpenAiMessagesTest, DocumentsAreAListOfObjects) {
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}], "documents": )";
  EXPECT_EQ(Read(messages + R"([{"title": "T", "text": "x"}, {"b": 1, "a": 2}])").documents(),
            R"([{"title":"T","text":"x"},{"b":1,"a":2}])");
  EXPECT_EQ(Read(messages + "[]").documents(), "");
  EXPECT_EQ(Read(messages + "null").documents(), "");
  for (const char* wrong : {"{}", "\"a\"", "[\"a\"]", "[null]", "true"}) {
    std::string problem;
    Read(messages + wrong, &problem);
    EXPECT_THAT(problem, StartsWith("documents")) << wrong;
  }
}

}  // namespace
}  // namespace tandem::router
