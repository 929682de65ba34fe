#include "bench/serve/prompts.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::HasSubstr;

TEST(PromptsTest, KnowsTheFormatsOfTheDatasets) {
  const auto prompts = ParsePrompts("mixed",
                                    R"({"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "..."}
{"question": "How many?", "answer": "#### 18"}

{"question_id": 241, "category": "writing", "turns": ["First.", "Second."]}
{"turns": ["Only."]}
{"id": "a", "text": "Text."}
"A string."
)",
                                    "mixed.jsonl");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  std::vector<std::string> found;
  for (const Prompt& prompt : *prompts) {
    EXPECT_EQ(prompt.dataset, "mixed");
    found.push_back(absl::StrCat(prompt.label, "|", prompt.text));
  }
  EXPECT_THAT(found, ::testing::ElementsAre("HumanEval/0|def f():\n", "line 2|How many?", "241|First.",
                                            "line 5|Only.", "a|Text.", "line 7|A string."));
}

TEST(PromptsTest, PlainTextIsAPromptALine) {
  const auto prompts = ParsePrompts("plain", "One {\r\n\n  \n\"Two\"", "prompts.txt");
  ASSERT_TRUE(prompts.ok());
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "One {");
  EXPECT_EQ((*prompts)[1].text, "\"Two\"");
  EXPECT_EQ((*prompts)[1].label, "line 4");
}

TEST(PromptsTest, SaysWhichLineIsWrong) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::pair<std::string, const char*> kCases[] = {
      {"{\"prompt\": ", "line 2"},
      {"{}", "expected a string, or an object"},
      {"{\"prompt\": 7}", "expected a string, or an object"},
      {"{\"turns\": []}", "expected a string, or an object"},
      {"{\"turns\": [{\"a\": 1}]}", "expected a string, or an object"},
      {"{\"turns\": \"text\"}", "expected a string, or an object"},
      {"[\"text\"]", "expected a string, or an object"},
      {"null", "expected a string, or an object"},
      {"\"\"", "the prompt is empty"},
      {"{\"prompt\": \"a\", \"prompt\": \"b\"}", "prompt"},
      {"\"\xFF\"", "line 2"},
      {absl::StrCat("\"", std::string(kMaxPromptBytes + 1, 'x'), "\""), "expected at most"},
      {deep, "line 2"},
      {"\"\\ud800\"", "line 2"},
  };
  for (const auto& [line, message] : kCases) {
    const auto prompts = ParsePrompts("bad", absl::StrCat("\"good\"\n", line, "\n"), "bad.jsonl");
    EXPECT_EQ(prompts.status().code(), absl::StatusCode::kInvalidArgument) << line.substr(0, 40);
    EXPECT_THAT(prompts.status().message(), HasSubstr("bad.jsonl: line 2")) << line.substr(0, 40);
    EXPECT_THAT(prompts.status().message(), HasSubstr(message)) << line.substr(0, 40);
  }
  EXPECT_THAT(ParsePrompts("bad", "text \xC3(", "bad.txt").status().message(), HasSubstr("not UTF-8"));
  EXPECT_THAT(ParsePrompts("none", "\n \n", "none.txt").status().message(), HasSubstr("no prompts"));
}

TEST(PromptsTest, RefusesFilesThatAreNotThere) {
  for (const char* argument : {"", "name", "=file", "name="}) {
    EXPECT_THAT(LoadPrompts(argument).status().message(), HasSubstr("expected NAME=FILE")) << argument;
  }
  EXPECT_EQ(LoadPrompts("name=no-such-file.jsonl").status().code(), absl::StatusCode::kNotFound);
}

TEST(PromptsTest, CutsToTokens) {
  const auto tokenizer =
      Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "Once upon a time there was a girl \u00e4\u00f6\u00fc \U0001F600\U0001F601 end";
  EXPECT_EQ(CutToTokens(**tokenizer, text, 1000).value(), text);
  size_t last = 0;
  for (size_t tokens = 4; tokens < 30; ++tokens) {
    const std::string cut = CutToTokens(**tokenizer, text, tokens).value();
    EXPECT_EQ(text.substr(0, cut.size()), cut) << tokens;
    EXPECT_LE((*tokenizer)->Encode(cut, {.add_special_tokens = false})->size(), tokens);
    EXPECT_GE(cut.size(), last);
    last = cut.size();
  }
  EXPECT_GT(last, 30u);
}

}  // namespace
}  // namespace tandem::bench
