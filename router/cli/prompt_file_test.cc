#include "router/cli/prompt_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PromptFileTest, TextAndJsonLines) {
  const auto prompts = ParsePrompts(
      "Once upon a time\r\n\n{\"prompt\": \"def f():\\n\", \"task_id\": 3}\n"
      "{\"question\": \"How many?\"}\n{\"turns\": [\"first\", \"second\"]}\n{\"text\": \"t\"}\n"
      "{\"chat\": \"Hello\"}");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  std::vector<std::string> texts;
  for (const FilePrompt& prompt : *prompts) texts.push_back(prompt.text);
  EXPECT_THAT(texts, ElementsAre("Once upon a time", "def f():\n", "How many?", "first", "t", "Hello"));
  EXPECT_TRUE(prompts->back().chat);
  EXPECT_FALSE(prompts->front().chat);
}

TEST(PromptFileTest, ErrorsNameTheLine) {
  const auto error = [](absl::string_view content) {
    return std::string(ParsePrompts(content).status().message());
  };
  EXPECT_THAT(error("a\n{\"prompt\": "), HasSubstr("line 2: begins with {"));
  EXPECT_THAT(error("{\"other\": 1}"), HasSubstr("line 1: has no text"));
  EXPECT_THAT(error("{\"prompt\": 7}"), HasSubstr("line 1: has no text"));
  EXPECT_THAT(error("{\"turns\": []}"), HasSubstr("line 1: has no text"));
  EXPECT_THAT(error("{\"prompt\": \"\"}"), HasSubstr("line 1: an empty prompt"));
  EXPECT_THAT(error("\n \n"), HasSubstr("contains no prompts"));
}

}  // namespace
}  // namespace tandem::cli
