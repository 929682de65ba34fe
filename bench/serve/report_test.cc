#include "bench/serve/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Experiment TwoTurns(const absl::Status& second) {
  Experiment experiment;
  experiment.prompts = {{"code", "HumanEval/0", "x"}};
  experiment.batches = {{"code", {0}}};
  experiment.samplings = {{0.8, 5}};
  experiment.loads = {{.concurrency = 2}};
  experiment.configurations = {{.label = "off"}, {.label = "a fixed", .drafter = "a"}};
  for (uint32_t i = 0; i < 2; ++i) {
    RequestRecord record;
    record.status = i == 0 ? absl::OkStatus() : second;
    record.tokens = {1, 2, 3};
    record.total_seconds = i == 0 ? 0.3 : 0.2;
    record.chunks = {{.seconds = 0.1, .tokens = 3}};
    experiment.results.push_back(
        {.turn = {.configuration = i}, .seconds = record.total_seconds, .records = {record}});
  }
  return experiment;
}

ServerDescription Simulated() {
  ServerDescription server{.name = "target"};
  server.info.set_simulated_pace("at least 12 ms");
  return server;
}

TEST(ReportTest, TablesSayWhatWasCompared) {
  const Experiment experiment = TwoTurns(absl::OkStatus());
  const std::string text = FormatSummaries(experiment, Summarize(experiment), {});
  EXPECT_THAT(text, HasSubstr("code, temperature 0.8, 2 at a time"));
  EXPECT_THAT(text, HasSubstr("1.50x"));
  EXPECT_THAT(text, HasSubstr("over \"off\""));
  EXPECT_THAT(text, Not(HasSubstr("SIMULATED")));
  EXPECT_THAT(text, Not(HasSubstr("errors")));
  EXPECT_THAT(FormatSummaries(experiment, Summarize(experiment), {Simulated()}),
              HasSubstr("SIMULATED  forward passes of target last at least 12 ms"));
}

TEST(ReportTest, ErrorsStandOut) {
  const Experiment experiment = TwoTurns(absl::UnavailableError("gone"));
  const std::string text = FormatSummaries(experiment, Summarize(experiment), {});
  EXPECT_THAT(text, HasSubstr("errors"));
  EXPECT_THAT(text, HasSubstr("ERRORS     a fixed: 1 of 1 requests, the first: UNAVAILABLE: gone"));
}

TEST(ReportTest, LostDraftersStandOut) {
  Experiment experiment = TwoTurns(absl::OkStatus());
  experiment.results[1].records[0].finished.mutable_speculation()->set_drafter_lost("refused");
  EXPECT_THAT(FormatSummaries(experiment, Summarize(experiment), {}),
              HasSubstr("LOST       a fixed: 1 of 1 requests"));
}

TEST(ReportTest, MismatchesNameThePrompt) {
  const Experiment experiment = TwoTurns(absl::OkStatus());
  const std::vector<Mismatch> mismatches = {{.configuration = 1, .position = 2}};
  EXPECT_EQ(
      FormatMismatches(experiment, mismatches),
      "outputs differ: code, HumanEval/0, temperature 0.8, seed 5: \"a fixed\" from \"off\" at token 2\n");
}

TEST(ReportTest, JsonHoldsEverything) {
  const Experiment experiment = TwoTurns(absl::OkStatus());
  const nlohmann::json json = ReportJson({}, experiment, Summarize(experiment), {}, {Simulated()});
  EXPECT_EQ(json["simulated"], true);
  EXPECT_EQ(json["identical_outputs"], true);
  EXPECT_EQ(json["baseline"], "off");
  EXPECT_NEAR(json["summaries"][1]["speed_up"]["median"].get<double>(), 1.5, 1e-9);
  EXPECT_EQ(json["requests"].size(), 2u);
  EXPECT_EQ(json["requests"][1]["configuration"], "a fixed");
  EXPECT_EQ(json["requests"][1]["tokens"], (std::vector<int>{1, 2, 3}));
  EXPECT_GT(json["machine"]["cores"].get<int>(), 0);
  EXPECT_TRUE(ReportJson({}, experiment, {}, {}, {})["simulated"].is_null());
  EXPECT_EQ(IsSimulated({ServerDescription{}}), false);
}

}  // namespace
}  // namespace tandem::bench
