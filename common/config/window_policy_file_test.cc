#include "common/config/window_policy_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(WindowPolicyFileTest, ReadsEveryPolicy) {
  const auto file = ParseWindowPolicyFile(
      R"({"policy": "fsm", "fixed": {"depth": 5}, "analytic": {"equation": 11, "history": 8, "maximum": 0.9, "initial": 0.5},
          "fsm": {"initial_depth": 2}, "cached-fsm": {"initial_depth": 3},
          "qlearning": {"learning_rate": 0.5, "discount": 0, "exploration": 1, "warmup_prompts": 5, "initial_value": 0,
                        "initial_depth": 4},
          "ema-tiers": {"candidate_steps": [2, 4], "initial_steps": 4},
          "goodput": {"history": 50, "prior_trials": 1.5}, "specdec++": {"threshold": 0.4}})",
      "policies.json");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->policy, "fsm");
  EXPECT_EQ(file->options.fixed.depth, 5u);
  EXPECT_EQ(file->options.specdec.threshold, 0.4);
  EXPECT_EQ(file->options.analytic.equation, AcceptanceEquation::kEquation11);
  EXPECT_EQ(file->options.analytic.history, 8u);
  EXPECT_EQ(file->options.analytic.maximum, 0.9);
  EXPECT_EQ(file->options.analytic.initial, 0.5);
  EXPECT_EQ(file->options.fsm.initial_depth, 2u);
  EXPECT_EQ(file->options.cached_fsm.initial_depth, 3u);
  EXPECT_EQ(file->options.qlearning.learning_rate, 0.5);
  EXPECT_EQ(file->options.qlearning.discount, 0.0);
  EXPECT_EQ(file->options.qlearning.exploration, 1.0);
  EXPECT_EQ(file->options.qlearning.initial_value, 0.0);
  EXPECT_EQ(file->options.qlearning.warmup_prompts, 5u);
  EXPECT_EQ(file->options.qlearning.initial_depth, 4u);
  EXPECT_THAT(file->options.ema_tiers.candidate_steps, ElementsAre(2, 4));
  EXPECT_EQ(file->options.ema_tiers.initial_steps, 4u);
  EXPECT_EQ(file->options.goodput.history, 50.0);
  EXPECT_EQ(file->options.goodput.prior_trials, 1.5);
}

TEST(WindowPolicyFileTest, DefaultsAreThoseOfTheSources) {
  const auto file = ParseWindowPolicyFile("{}", "x");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->options.analytic.history, 6u);
  EXPECT_EQ(file->options.analytic.maximum, 0.98);
  EXPECT_THAT(file->options.ema_tiers.candidate_steps, ElementsAre(1, 3, 7));
  EXPECT_EQ(file->options.ema_tiers.ema_alpha, 0.2);
  EXPECT_EQ(file->options.ema_tiers.update_interval, 5u);
  EXPECT_EQ(file->options.ema_tiers.warmup_batches, 10u);
  EXPECT_EQ(file->options.ema_tiers.down_hysteresis, -0.25);
  EXPECT_EQ(file->options.ema_tiers.up_hysteresis, 0.0);
}

TEST(WindowPolicyFileTest, TakesSglangsFileAsItIs) {
  const auto file = ParseWindowPolicyFile(
      R"({"candidate_steps": [1, 2, 5], "ema_alpha": 0.5, "warmup_batches": 3, "update_interval": 2,
          "down_hysteresis": -0.5, "up_hysteresis": 0.25})",
      "adaptive_spec.json");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->options.ema_tiers.candidate_steps, ElementsAre(1, 2, 5));
  EXPECT_EQ(file->options.ema_tiers.ema_alpha, 0.5);
  EXPECT_EQ(file->options.ema_tiers.warmup_batches, 3u);
  EXPECT_EQ(file->options.ema_tiers.update_interval, 2u);
  EXPECT_EQ(file->options.ema_tiers.down_hysteresis, -0.5);
  EXPECT_EQ(file->options.ema_tiers.up_hysteresis, 0.25);
}

struct BadCase {
  const char* json;
  const char* message;
};

class WindowPolicyFileErrorTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(WindowPolicyFileErrorTest, SaysWhatIsWrongWhere) {
  const auto file = ParseWindowPolicyFile(GetParam().json, "p.json");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Bad, WindowPolicyFileErrorTest,
    ::testing::Values(
        BadCase{"{", "p.json: byte"}, BadCase{"[1]", "p.json: found [1], expected an object"},
        BadCase{R"({"fast": {}})", "p.json: window policy fast is not known, expected \"policy\", one of"},
        BadCase{R"({"policy": "best"})", "p.json: field policy: found \"best\", expected one of analytic"},
        BadCase{R"({"policy": null})", "p.json: field policy: found nothing"},
        BadCase{R"({"fixed": 3})", "p.json: field fixed: found 3, expected an object"},
        BadCase{R"({"fixed": {"deep": 3}})", "p.json: field fixed.deep is not known, expected one of depth"},
        BadCase{R"({"fixed": {"depth": 129}})", "p.json: field fixed.depth: found 129"},
        BadCase{R"({"fixed": {"depth": 1.5}})", "p.json: field fixed.depth: found 1.5"},
        BadCase{R"({"analytic": {"maximum": 1}})", "p.json: field analytic.maximum: found 1"},
        BadCase{R"({"analytic": {"equation": 3}})",
                "p.json: field analytic.equation: found 3, expected 2, 11 or 12"},
        BadCase{R"({"qlearning": {"learning_rate": 0}})", "p.json: field qlearning.learning_rate: found 0"},
        BadCase{R"({"candidate_steps": []})", "p.json: field candidate_steps: found []"},
        BadCase{R"({"candidate_steps": [3, 1]})", "expected 1 to 16 increasing whole numbers from 1 to 128"},
        BadCase{R"({"candidate_steps": [0]})", "p.json: field candidate_steps: found [0]"},
        BadCase{R"({"candidate_steps": ["1"]})", "p.json: field candidate_steps: found"},
        BadCase{R"({"candidate_steps": [1], "fixed": {}})", "p.json: field fixed is not known"},
        BadCase{R"({"ema-tiers": {"update_interval": 0}})",
                "p.json: field ema-tiers.update_interval: found 0"},
        BadCase{R"({"ema-tiers": {"ema_alpha": 2}})", "p.json: field ema-tiers.ema_alpha: found 2"}));

TEST(WindowPolicyFileTest, RefusesLargeFiles) {
  EXPECT_FALSE(ParseWindowPolicyFile(std::string(1 << 20, ' '), "p.json").ok());
}

}  // namespace
}  // namespace tandem
