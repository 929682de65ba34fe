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

std::vector<std::string> LabelsAndTexts(const absl::StatusOr<std::vector<Prompt>>& prompts) {
  EXPECT_TRUE(prompts.ok()) << prompts.status();
  std::vector<std::string> found;
  for (const Prompt& prompt : prompts.value_or(std::vector<Prompt>())) {
    found.push_back(absl::StrCat(prompt.label, "|", prompt.text));
  }
  return found;
}

TEST(PromptsTest, XsumsPromptIsTheArticle) {
  EXPECT_THAT(LabelsAndTexts(ParsePrompts(
                  "xsum",
                  R"({"document": "A bridge was closed.", "summary": "A bridge.", "id": "35232142"}
{"document": "Rain is expected.\nWind too.", "summary": "Weather.", "id": "1"}
)",
                  "xsum.jsonl")),
              ::testing::ElementsAre("35232142|A bridge was closed.", "1|Rain is expected.\nWind too."));
}

TEST(PromptsTest, FinanceAlpacasPromptIsInstructionAndInput) {
  // As published: one list, with a "text" that is empty.
  EXPECT_THAT(LabelsAndTexts(ParsePrompts("finance", R"([
  {"text": "", "instruction": "For a car, what scams can be plotted?", "input": "", "output": "The car deal."},
  {"text": "", "instruction": "Sum this up.", "input": "Shares fell.", "output": "They fell."},
  {"instruction": "No input at all.", "output": "None."}
])",
                                          "finance_alpaca.json")),
              ::testing::ElementsAre("entry 1|For a car, what scams can be plotted?",
                                     "entry 2|Sum this up.\n\nShares fell.", "entry 3|No input at all."));
}

TEST(PromptsTest, ShareGptsPromptIsTheFirstOfAHuman) {
  EXPECT_THAT(LabelsAndTexts(ParsePrompts("chat", R"([
  {"id": "QWJhYvA_0", "conversations": [{"from": "human", "value": "Hello."}, {"from": "gpt", "value": "Hi."}]},
  {"id": "i6IyJda_0", "conversations": [{"from": "gpt", "value": "As I said."}, {"from": "human", "value": "Go on."}]},
  {"id": "i6IyJda_1", "conversations": [{"from": "gpt", "value": "The rest."}]},
  {"id": "empty", "conversations": []},
  {"id": "A5AbcES_0", "conversations": [{"from": "system", "value": "Be brief."}, {"from": "user", "value": "Why?"}]}
])",
                                          "sharegpt.json")),
              ::testing::ElementsAre("QWJhYvA_0|Hello.", "i6IyJda_0|Go on.", "A5AbcES_0|Why?"));
}

TEST(PromptsTest, AChatIsAMessageOfAUser) {
  const auto prompts =
      ParsePrompts("mixed", "{\"chat\": \"Hello.\"}\n{\"text\": \"Once\"}\n", "calibration.jsonl");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ((*prompts)[0].text, "Hello.");
  EXPECT_TRUE((*prompts)[0].chat);
  EXPECT_FALSE((*prompts)[1].chat);
}

TEST(PromptsTest, SaysWhichEntryOfAListIsWrong) {
  const auto error = [](const std::string& contents) {
    return std::string(ParsePrompts("bad", contents, "bad.json").status().message());
  };
  EXPECT_THAT(error(R"(["good", {"conversations": "text"}])"),
              HasSubstr("bad.json: entry 2: expected a string"));
  EXPECT_THAT(error(R"([{"conversations": [{"from": "human"}]}])"), HasSubstr("bad.json: entry 1"));
  EXPECT_THAT(error(R"([{"conversations": [7]}])"), HasSubstr("bad.json: entry 1"));
  EXPECT_THAT(error(R"([{"instruction": 7}])"), HasSubstr("bad.json: entry 1"));
  EXPECT_THAT(error(R"([{"document": ""}])"), HasSubstr("entry 1: the prompt is empty"));
  EXPECT_THAT(error(R"({"prompt": "a"})"), HasSubstr("expected a list of entries"));
  EXPECT_THAT(error("[\"a\""), HasSubstr("bad.json"));
  EXPECT_THAT(error(R"([{"id": "x", "conversations": []}])"), HasSubstr("no prompts"));
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
