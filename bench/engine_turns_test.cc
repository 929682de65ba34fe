#include "bench/engine_turns.h"

#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

// The answers to `input`, one per line, that it is ready first.
std::vector<Json> Answers(const std::string& input) {
  EngineBenchOptions options;
  options.model.folder = absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/tiny-llama");
  options.rows = {4};
  options.contexts = {20};
  std::istringstream in(input);
  std::ostringstream out;
  EXPECT_EQ(RunEngineTurns(options, in, out), absl::OkStatus());
  std::vector<Json> answers;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) answers.push_back(Json::parse(line));
  return answers;
}

TEST(EngineTurnsTest, AnswersEveryLine) {
  const std::vector<Json> answers = Answers(
      "{\"run\":\"step\",\"rows\":4,\"count\":3}\n"
      "{\"run\":\"prefill\",\"tokens\":8,\"count\":1}\n"
      "{\"run\":\"greedy\",\"prompt\":[1,2,3],\"tokens\":5}\n");
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[0]["ready"], true);
  EXPECT_EQ(answers[0]["name"], "tandem");
  EXPECT_EQ(answers[1]["seconds"].size(), 3u);
  EXPECT_GT(answers[1]["floor_seconds"], 0.0);
  EXPECT_EQ(answers[2]["seconds"].size(), 1u);
  EXPECT_EQ(answers[3]["tokens"].size(), 5u);
}

TEST(EngineTurnsTest, AGreedyContinuationContinuesItself) {
  const Json all = Answers("{\"run\":\"greedy\",\"prompt\":[1,2,3],\"tokens\":4}")[1]["tokens"];
  const std::string longer = absl::StrCat("{\"run\":\"greedy\",\"prompt\":[1,2,3,", all[0].get<int>(), ",",
                                          all[1].get<int>(), "],\"tokens\":2}");
  const Json rest = Answers(longer)[1]["tokens"];
  EXPECT_EQ(rest[0], all[2]);
  EXPECT_EQ(rest[1], all[3]);
}

TEST(EngineTurnsTest, AWrongLineIsAnsweredWithAnErrorAndTheNextOneWorks) {
  const std::vector<Json> answers = Answers(
      "nonsense\n[]\n{\"run\":7}\n{\"run\":\"walk\"}\n{\"run\":\"step\",\"rows\":5,\"count\":1}\n"
      "{\"run\":\"step\",\"rows\":-1,\"count\":1}\n{\"run\":\"step\",\"rows\":1}\n"
      "{\"run\":\"prefill\",\"tokens\":21,\"count\":1}\n{\"run\":\"greedy\",\"prompt\":[-1],\"tokens\":1}\n"
      "{\"run\":\"greedy\",\"prompt\":[1000000],\"tokens\":1}\n{\"run\":\"greedy\",\"prompt\":[],\"tokens\":"
      "1}\n"
      "{\"run\":\"step\",\"rows\":1,\"count\":1}\n");
  ASSERT_EQ(answers.size(), 13u);
  for (size_t i = 1; i + 1 < answers.size(); ++i) EXPECT_TRUE(answers[i].contains("error")) << i;
  EXPECT_TRUE(answers.back().contains("seconds"));
}

}  // namespace
}  // namespace tandem
