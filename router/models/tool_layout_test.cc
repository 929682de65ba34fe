#include "router/models/tool_layout.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// ChatML, which knows no tools.
constexpr char kPlain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
// Like many older templates: no system, and user and assistant in turns.
constexpr char kTurns[] =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 is even) or m.role == 'system' %}"
    "{{ raise_exception('turns') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
constexpr char kTools[] =
    "{{ tools | tojson if tools }}{{ documents | tojson if documents }}{% for m in messages %}<{{ m.role }}>"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{% endfor %}";

std::vector<ChatMessage> Talk() {
  return {
      {"user", "Warm?"},
      {.role = "assistant", .tool_calls = {{.id = "1", .name = "look", .arguments = R"({"city":"Bern"})"}}},
      {.role = "tool", .content = "17", .tool_call_id = "1"},
      {.role = "tool", .content = "18", .name = "other"},
      {"user", "So?"}};
}

// The prompt of a conversation with a tool.
std::string PromptOf(const char* source, std::vector<ChatMessage> messages,
                     const std::string& format = "json", std::string documents = "") {
  const ChatTemplate chat_template = *ChatTemplate::Parse(source);
  const TemplateTraits traits = TryTemplate(
      [&](absl::Span<const ChatMessage> trial, const ChatTemplateOptions& options) {
        return chat_template.Render(trial, {}, options);
      },
      source);
  ChatTemplateOptions options{
      .tools = {{.name = "look", .description = "Looks \"it\" up.", .parameters = R"({"type":"object"})"}},
      .documents = std::move(documents),
      .spelling = traits.spelling};
  LayOutInTexts(traits, *OutputFormatOf(format), messages, options);
  const absl::StatusOr<std::string> prompt = chat_template.Render(messages, {}, options);
  return prompt.ok() ? *prompt : std::string(prompt.status().message());
}

TEST(ToolLayoutTest, ListsToolsForTheSystem) {
  const std::string text =
      "You can call these functions:\n\n"
      R"({"name": "look", "description": "Looks \"it\" up.", "parameters": {"type":"object"}})"
      "\n\nTo call a function, answer with this and nothing else:\n\n"
      R"({"name": "NAME", "arguments": ARGUMENTS})"
      "\n\nNAME is the name of the function and ARGUMENTS a JSON object that its parameters allow. "
      "If no function is needed, answer in words.";
  EXPECT_EQ(PromptOf(kPlain, {{"user", "Hi"}}), absl::StrCat("<system>", text, "<user>Hi"));
  EXPECT_EQ(PromptOf(kPlain, {{"system", "Be kind."}, {"user", "Hi"}}),
            absl::StrCat("<system>Be kind.\n\n", text, "<user>Hi"));
  EXPECT_EQ(PromptOf(kPlain, {{.role = "system", .parts = {"Be kind."}}, {"user", "Hi"}}),
            absl::StrCat("<system>Be kind.\n", text, "<user>Hi"));
  EXPECT_EQ(PromptOf(kTurns, {{"user", "Hi"}}), absl::StrCat("<user>", text, "\n\nHi"));
}

TEST(ToolLayoutTest, AsksForTheModelsFormat) {
  EXPECT_THAT(PromptOf(kPlain, {{"user", "Hi"}}, "hermes"),
              HasSubstr("<tool_call>\n{\"name\": \"NAME\", \"arguments\": ARGUMENTS}\n</tool_call>\n"));
  EXPECT_THAT(PromptOf(kPlain, {{"user", "Hi"}}, "llama"),
              HasSubstr(R"({"name": "NAME", "parameters": ARGUMENTS})"));
}

TEST(ToolLayoutTest, CallsAndResultsAreTexts) {
  const std::string call = R"(<assistant>{"name": "look", "arguments": {"city":"Bern"}})";
  const std::string plain = PromptOf(kPlain, Talk());
  EXPECT_THAT(plain, HasSubstr(absl::StrCat("<user>Warm?", call, "<tool>17<tool>18<user>So?")));
  const std::string turns = PromptOf(kTurns, Talk());
  EXPECT_THAT(turns, HasSubstr(absl::StrCat("Warm?", call,
                                            "<user>Result of look:\n17\n\nResult of other:\n18\n\nSo?")));
  EXPECT_THAT(PromptOf(kPlain, Talk(), "hermes"),
              HasSubstr("<assistant><tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\":\"Bern\"}}\n"
                        "</tool_call><tool>"));
}

TEST(ToolLayoutTest, KeepsWhatTheAssistantSaidInFront) {
  std::vector<ChatMessage> talk = Talk();
  talk[1].content = "Let me see.";
  EXPECT_THAT(PromptOf(kPlain, talk), HasSubstr("<assistant>Let me see.\n\n{\"name\": \"look\""));
}

TEST(ToolLayoutTest, LeavesToTheTemplateWhatItKnows) {
  const std::string prompt = PromptOf(kTools, Talk(), "json", R"([{"text":"Snow."}])");
  EXPECT_THAT(prompt, HasSubstr(R"([{"type": "function", "function": {"name": "look")"));
  EXPECT_THAT(prompt, HasSubstr(R"([{"text": "Snow."}])"));
  EXPECT_THAT(prompt, Not(HasSubstr("You can call")));
  EXPECT_THAT(prompt, Not(HasSubstr("Answer with the help")));
}

TEST(ToolLayoutTest, DocumentsAreTheSystemsToo) {
  EXPECT_THAT(
      PromptOf(kPlain, {{"user", "Hi"}}, "json", R"([{"text":"Snow."}])"),
      HasSubstr("<system>Answer with the help of these documents:\n\n[{\"text\":\"Snow.\"}]\n\nYou can"));
}

}  // namespace
}  // namespace tandem::router
