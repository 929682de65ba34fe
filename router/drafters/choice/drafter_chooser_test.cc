#include "router/drafters/choice/drafter_chooser.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::vector<std::string> kDrafters = {"prose", "code"};
constexpr char kTenant[] = "acme";
const VerifySeconds kVerify = {0.010, 0.0102, 0.0104, 0.0106, 0.0108};

// Prose uses tokens 0 to 29, code 30 to 59; each drafter is good at one of them.
class World {
 public:
  TokenIds Prompt(bool code) {
    TokenIds prompt(10 + random_() % 40);
    for (TokenId& token : prompt) token = static_cast<TokenId>(random_() % 30 + (code ? 30 : 0));
    return prompt;
  }
  double Acceptance(absl::string_view drafter, bool code) {
    std::normal_distribution<double> noise(0.0, 0.05);
    return std::clamp(((drafter == "code") == code ? 0.75 : 0.5) + noise(random_), 0.0, 1.0);
  }
  RequestOutcome Outcome(absl::string_view drafter, bool code) {
    RequestOutcome outcome{.verify = kVerify};
    if (drafter.empty()) return outcome;
    outcome.accepted = static_cast<uint32_t>(100 * Acceptance(drafter, code));
    outcome.rejections = 100 - outcome.accepted;
    outcome.draft = DraftCosts{.exposed_level_seconds = 0.001};
    return outcome;
  }
  bool NextIsCode() { return random_() % 2 == 0; }

 private:
  std::mt19937 random_{17};
};

DrafterChooser Chooser() {
  return DrafterChooser({}, {{.name = "target", .vocab_size = 60, .vocabulary_fingerprint = 5}});
}

std::vector<CalibrationPrompt> CalibrationPrompts(World& world, size_t count) {
  std::vector<CalibrationPrompt> prompts;
  for (size_t i = 0; i < count; ++i) {
    const bool code = i % 2 == 0;
    CalibrationPrompt prompt{.tokens = world.Prompt(code), .outcomes = {}};
    for (const std::string& drafter : kDrafters) {
      prompt.outcomes.push_back(
          {.drafter = drafter, .acceptance = world.Acceptance(drafter, code), .trials = 100});
    }
    prompts.push_back(prompt);
  }
  return prompts;
}

// Serves one request; returns the drafter it got.
std::string Serve(DrafterChooser& chooser, World& world, bool code, std::string* reason = nullptr) {
  const PromptHandle prompt = chooser.Prepare(0, world.Prompt(code), kTenant);
  const DrafterDecision decision = chooser.Decide(0, prompt, kDrafters);
  if (reason != nullptr) *reason = std::string(decision.reason);
  const std::string drafter = decision.drafter.has_value() ? kDrafters[*decision.drafter] : "";
  chooser.Learn(0, drafter, prompt, world.Outcome(drafter, code));
  if (chooser.FitDue(0)) chooser.Fit(0);
  return drafter;
}

// Plain decoding at `ratio` times the 100 tokens per second that kVerify promises.
RequestOutcome PlainOutcome(double ratio, uint32_t tokens = 200) {
  return {.verify = kVerify, .decode_tokens = tokens, .decode_seconds = tokens / 100.0 / ratio};
}

TEST(DrafterChooserTest, NoticesThatPlainDecodingHasBecomeFaster) {
  DrafterChooser chooser = Chooser();
  World world;
  const auto correction = [&] {
    return chooser.Explain(0, world.Prompt(true), kTenant, kDrafters).candidates(0).correction();
  };
  for (int i = 0; i < 100; ++i) {
    chooser.Learn(0, "", chooser.Prepare(0, world.Prompt(true), kTenant), PlainOutcome(1.0));
  }
  EXPECT_NEAR(correction(), 1.0, 0.01);
  int plain = 0;
  while (plain < 4) {
    const bool code = world.NextIsCode();
    const PromptHandle prompt = chooser.Prepare(0, world.Prompt(code), kTenant);
    // Others' short answers without a drafter tell nothing, and are in nobody's way.
    chooser.Learn(0, "", prompt, PlainOutcome(1.0, /*tokens=*/1));
    const DrafterDecision decision = chooser.Decide(0, prompt, kDrafters);
    const std::string drafter = decision.drafter.has_value() ? kDrafters[*decision.drafter] : "";
    plain += drafter.empty() ? 1 : 0;
    chooser.Learn(0, drafter, prompt, drafter.empty() ? PlainOutcome(2.0) : world.Outcome(drafter, code));
  }
  EXPECT_GT(correction(), 1.4);
}

TEST(DrafterChooserTest, TimesPlainDecodingNowAndThen) {
  DrafterChooser chooser = Chooser();
  World world;
  std::vector<int> plain;  // At which decisions.
  for (int i = 1; i <= 1200; ++i) {
    std::string reason;
    const std::string drafter = Serve(chooser, world, world.NextIsCode(), &reason);
    if (!drafter.empty()) continue;
    plain.push_back(i);
    EXPECT_EQ(reason, kReasonRefresh);
  }
  // 512 decisions from the first and then from the last, and as many before the next.
  EXPECT_EQ(plain, (std::vector<int>{512, 1024}));
  // However many are on their way.
  std::vector<DrafterDecision> decisions;
  for (int i = 0; i < 700; ++i) {
    const PromptHandle prompt = chooser.Prepare(0, world.Prompt(true), kTenant);
    decisions.push_back(chooser.Decide(0, prompt, kDrafters));
  }
  EXPECT_EQ(std::count_if(decisions.begin(), decisions.end(),
                          [](const DrafterDecision& decision) { return !decision.drafter.has_value(); }),
            1);
}

TEST(DrafterChooserTest, LearnsFromColdWhichDrafterSuitsWhichPrompt) {
  DrafterChooser chooser = Chooser();
  World world;
  std::map<std::string, int> explored;
  std::string reason = "explore";
  for (int i = 0; i < 200; ++i) {
    const std::string drafter = Serve(chooser, world, world.NextIsCode(), &reason);
    if (reason == "explore") ++explored[drafter];
  }
  EXPECT_EQ(explored["prose"], 25);
  EXPECT_EQ(explored["code"], 25);
  int right = 0;
  for (int i = 0; i < 100; ++i) {
    const bool code = world.NextIsCode();
    right += Serve(chooser, world, code) == (code ? "code" : "prose");
  }
  EXPECT_GE(right, 97);
}

// Until every candidate has samples, by whatever way they came, or nothing comes of asking.
TEST(DrafterChooserTest, SaysHowLongAllAreWorthAsking) {
  World world;
  const auto decide = [&](DrafterChooser& chooser) {
    const PromptHandle prompt = chooser.Prepare(0, world.Prompt(true), kTenant);
    return std::pair(prompt, chooser.Decide(0, prompt, kDrafters).learning);
  };
  DrafterChooser answered = Chooser();
  for (int i = 0; i < 100; ++i) {
    const auto [prompt, learning] = decide(answered);
    EXPECT_TRUE(learning) << i;
    for (const std::string& drafter : kDrafters) answered.Observe(0, drafter, prompt, 0.5, 1.0);
  }
  EXPECT_FALSE(decide(answered).second);
  DrafterChooser silent = Chooser();
  int asked = 0;
  while (decide(silent).second && asked < 10000) ++asked;
  EXPECT_EQ(asked, 500);
  // A drafter that comes later is new, and so is one that a calibration leaves out.
  const PromptHandle prompt = answered.Prepare(0, world.Prompt(true), kTenant);
  EXPECT_TRUE(answered.Decide(0, prompt, {"prose", "code", "late"}).learning);
  EXPECT_FALSE(decide(answered).second);
  ASSERT_TRUE(silent.Calibrate(0, CalibrationPrompts(world, 120)).ok());
  EXPECT_FALSE(decide(silent).second);
  EXPECT_TRUE(
      silent.Decide(0, silent.Prepare(0, world.Prompt(true), kTenant), {"prose", "code", "late"}).learning);
  // What is known of one that nobody has heard of can be kept.
  DrafterChooser kept = Chooser();
  const v1::LearnedRouting state = silent.Save();
  ASSERT_EQ(state.models_size(), 1);
  EXPECT_EQ(state.models(0).drafters_size(), 3);
  const absl::Status loaded = kept.Load(state);
  EXPECT_TRUE(loaded.ok()) << loaded;
}

// A draft head has no scores: it is learned from the requests that it drafts for, and a share of all prompts
// shows that it has become better where it was not chosen.
TEST(DrafterChooserTest, AHeadIsLearnedFromAShareOfAllPrompts) {
  World world;
  double head = 0.1;
  std::map<std::string, int> used;
  const std::vector<std::string> drafters = {"model", "head"};
  // Serves one request; the model's score comes in any case, the head's never does.
  const auto serve = [&](DrafterChooser& chooser, bool head_scores = false) {
    const PromptHandle prompt = chooser.Prepare(0, world.Prompt(world.NextIsCode()), kTenant);
    const DrafterDecision decision = chooser.Decide(0, prompt, drafters);
    const std::string drafter = decision.drafter.has_value() ? drafters[*decision.drafter] : "";
    ++used[drafter];
    RequestOutcome outcome{.verify = kVerify};
    if (!drafter.empty()) {
      outcome.accepted = static_cast<uint32_t>(100 * (drafter == "head" ? head : 0.6));
      outcome.rejections = 100 - outcome.accepted;
      outcome.draft = DraftCosts{.exposed_level_seconds = 0.001};
    }
    chooser.Learn(0, drafter, prompt, outcome);
    if (drafter != "model") chooser.Observe(0, "model", prompt, 0.6, 1.0);
    chooser.OnScoreAnswered(0, "model", true);
    chooser.OnScoreAnswered(0, "head", head_scores);
    if (chooser.FitDue(0)) chooser.Fit(0);
    return decision;
  };

  DrafterChooser chooser = Chooser();
  for (int i = 0; i < 200; ++i) serve(chooser);
  EXPECT_FALSE(serve(chooser).learning) << "nothing comes of asking the head";
  used.clear();
  for (int i = 0; i < 2000; ++i) serve(chooser);
  // 2 % of 2,000, less those that fall on a refresh of plain decoding.
  EXPECT_GE(used["head"], 25);
  EXPECT_LE(used["head"], 60);
  // The head is replaced by a better one, which shows in the requests that it drafts for.
  head = 0.9;
  for (int i = 0; i < 1000; ++i) serve(chooser);
  used.clear();
  for (int i = 0; i < 100; ++i) serve(chooser);
  EXPECT_GE(used["head"], 90);

  // A drafter that scores is left to its scores.
  DrafterChooser scored = Chooser();
  head = 0.1;
  for (int i = 0; i < 200; ++i) serve(scored, /*head_scores=*/true);
  used.clear();
  for (int i = 0; i < 500; ++i) serve(scored, /*head_scores=*/true);
  EXPECT_LE(used["head"], 1) << "but to be timed";
}

TEST(DrafterChooserTest, CalibratedItNeedsNoExploring) {
  DrafterChooser chooser = Chooser();
  World world;
  const auto errors = chooser.Calibrate(0, CalibrationPrompts(world, 60));
  ASSERT_TRUE(errors.ok()) << errors.status();
  EXPECT_THAT(*errors, SizeIs(2));
  EXPECT_LT(errors->at("code"), 0.08);
  std::string reason;
  // Costs are those of the machine: one request tells each.
  EXPECT_EQ(Serve(chooser, world, true, &reason), "prose");
  EXPECT_EQ(reason, "explore");
  EXPECT_EQ(Serve(chooser, world, false, &reason), "code");
  EXPECT_EQ(reason, "explore");
  EXPECT_EQ(Serve(chooser, world, true, &reason), "code");
  EXPECT_EQ(reason, "auto");
  EXPECT_EQ(Serve(chooser, world, false), "prose");
}

TEST(DrafterChooserTest, WhatServersSayOfTheirSpeedCountsUntilItIsMeasured) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 60)).ok());
  const TokenIds prompt = world.Prompt(true);
  chooser.TellRoundSeconds(0, {{{1, 0.010}, {64, 0.012}}});
  chooser.TellLevelSeconds("code", 0.001);
  chooser.TellLevelSeconds("prose", 0.001);
  const auto chosen = [&] {
    const v1::ChoiceExplanation explanation = chooser.Explain(0, prompt, kTenant, kDrafters);
    EXPECT_EQ(explanation.reason(), "auto");
    EXPECT_EQ(explanation.verify_seconds_size(), 9);
    EXPECT_DOUBLE_EQ(explanation.verify_seconds(0), 0.010);
    return explanation.drafter();
  };
  EXPECT_EQ(chosen(), "code");
  // Though it would be right more often.
  chooser.TellLevelSeconds("code", 0.200);
  EXPECT_EQ(chosen(), "prose");
  // What makes no sense changes nothing.
  chooser.TellLevelSeconds("code", -1.0);
  chooser.TellLevelSeconds("code", std::numeric_limits<double>::quiet_NaN());
  chooser.TellLevelSeconds("code", 1e9);
  chooser.TellRoundSeconds(0, {});
  chooser.TellRoundSeconds(0, {{{2, 0.5}, {1, 0.5}}});
  chooser.TellRoundSeconds(0, {{{0, 0.5}}});
  chooser.TellRoundSeconds(0, {{{1, std::numeric_limits<double>::infinity()}}});
  EXPECT_EQ(chosen(), "prose");
  // It was slow when it was loaded, and is not in service.
  const PromptHandle handle = chooser.Prepare(0, prompt, kTenant);
  chooser.Learn(0, "code", handle, world.Outcome("code", true));
  const v1::ChoiceExplanation measured = chooser.Explain(0, prompt, kTenant, kDrafters);
  EXPECT_EQ(measured.drafter(), "code");
  EXPECT_EQ(measured.verify_seconds_size(), 5);
}

TEST(DrafterChooserTest, ADrafterThatNeverDraftsIsNotExploredWithoutEnd) {
  DrafterChooser chooser = Chooser();
  World world;
  int silent = 0;
  for (int i = 0; i < 150; ++i) {
    const PromptHandle prompt = chooser.Prepare(0, world.Prompt(true), kTenant);
    const DrafterDecision decision = chooser.Decide(0, prompt, kDrafters);
    ASSERT_TRUE(decision.drafter.has_value());
    const std::string& drafter = kDrafters[*decision.drafter];
    silent += drafter == "prose" ? 1 : 0;
    // It finds nothing to draft, which is no slower than plain decoding.
    RequestOutcome nothing{.verify = kVerify, .decode_tokens = 100, .decode_seconds = 1.0};
    nothing.draft = DraftCosts{.exposed_level_seconds = 0.001};
    chooser.Learn(0, drafter, prompt, drafter == "prose" ? nothing : world.Outcome(drafter, true));
  }
  EXPECT_GE(silent, 25);
  EXPECT_LE(silent, 50);
}

TEST(DrafterChooserTest, ADrafterThatVerifiersDoWithoutIsLeft) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 60)).ok());
  for (int i = 0; i < 40; ++i) EXPECT_NE(Serve(chooser, world, world.NextIsCode()), "");
  // Both go wrong: verifiers decode without them, so that nothing is tried, and they cost a tenth of the
  // speed.
  int without = 0;
  for (int i = 0; i < 120; ++i) {
    const PromptHandle prompt = chooser.Prepare(0, world.Prompt(world.NextIsCode()), kTenant);
    const DrafterDecision decision = chooser.Decide(0, prompt, kDrafters);
    const std::string drafter = decision.drafter.has_value() ? kDrafters[*decision.drafter] : "";
    if (i >= 80) without += drafter.empty() ? 1 : 0;
    const double seconds = drafter.empty() ? 1.0 : 1.1;
    chooser.Learn(0, drafter, prompt, {.verify = kVerify, .decode_tokens = 100, .decode_seconds = seconds});
  }
  EXPECT_GE(without, 35);
}

// What one drafter does not keep is not charged to the others.
TEST(DrafterChooserTest, WhenOneDrafterBecomesSlowAnotherIsTaken) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 60)).ok());
  for (int i = 0; i < 40; ++i) Serve(chooser, world, true);
  ASSERT_EQ(Serve(chooser, world, true), "code");
  const auto corrected = [&](int candidate) {
    return chooser.Explain(0, world.Prompt(true), kTenant, kDrafters).candidates(candidate).correction();
  };
  const double before = corrected(1);
  for (int i = 0; i < 30; ++i) {
    RequestOutcome outcome = world.Outcome("code", true);
    outcome.decode_tokens = 100;
    outcome.decode_seconds = 100.0 * kVerify[0] * 4;
    chooser.Learn(0, "code", chooser.Prepare(0, world.Prompt(true), kTenant), outcome);
  }
  EXPECT_LT(corrected(2), 0.5);
  EXPECT_EQ(corrected(1), before) << "prose";
  EXPECT_NE(Serve(chooser, world, true), "code");
}

TEST(DrafterChooserTest, OneTenantsSlowRequestsChooseNothingForAnother) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 60)).ok());
  for (int i = 0; i < 40; ++i) Serve(chooser, world, true);
  const auto learn = [&](absl::string_view tenant, double seconds) {
    RequestOutcome outcome = world.Outcome("code", true);
    outcome.decode_tokens = 100;
    outcome.decode_seconds = seconds;
    chooser.Learn(0, "code", chooser.Prepare(0, world.Prompt(true), tenant), outcome);
  };
  for (int i = 0; i < 10; ++i) learn(kTenant, 100.0 * kVerify[0] / 3);
  const TokenIds prompt = world.Prompt(true);
  const auto rated = [&](absl::string_view tenant) {
    return chooser.Explain(0, prompt, tenant, kDrafters).candidates(2);
  };
  const double before = rated(kTenant).correction();
  for (int i = 0; i < 2000; ++i) learn("flood", 100.0 * kVerify[0] * 4);
  EXPECT_EQ(rated(kTenant).correction(), before);
  EXPECT_LT(rated("flood").correction(), 0.5);
  EXPECT_EQ(Serve(chooser, world, true), "code");
}

TEST(DrafterChooserTest, RequestsThatLostTheirDrafterAreNoSamples) {
  DrafterChooser chooser = Chooser();
  World world;
  for (int i = 0; i < 60; ++i)
    chooser.Learn(0, "code", chooser.Prepare(0, world.Prompt(true), kTenant), {.verify = kVerify});
  std::string reason;
  Serve(chooser, world, true, &reason);
  EXPECT_EQ(reason, "explore");
  EXPECT_EQ(Serve(chooser, world, true, &reason), "code") << "still has none, as the other";
}

TEST(DrafterChooserTest, TooFewCalibrationPromptsChangeNothing) {
  DrafterChooser chooser = Chooser();
  World world;
  const auto errors = chooser.Calibrate(0, CalibrationPrompts(world, 9));
  EXPECT_EQ(errors.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(errors.status().message(), HasSubstr("9, expected at least 10"));
  EXPECT_FALSE(chooser.Explain(0, world.Prompt(true), kTenant, kDrafters).features_fitted());
}

TEST(DrafterChooserTest, FeedbackTeachesDraftersThatWereNotUsed) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 60)).ok());
  for (int i = 0; i < 300; ++i) {
    chooser.Observe(0, "prose", chooser.Prepare(0, world.Prompt(true), kTenant), 0.95, 1.0);
  }
  EXPECT_GT(chooser.Predict(0, "prose", chooser.Prepare(0, world.Prompt(true), kTenant)).mean, 0.85);
}

TEST(DrafterChooserTest, LeavesPlainWhenDraftingCostsMore) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 60)).ok());
  RequestOutcome slow{
      .accepted = 5, .rejections = 5, .draft = DraftCosts{.exposed_level_seconds = 0.1}, .verify = kVerify};
  for (const std::string& drafter : kDrafters) {
    chooser.Learn(0, drafter, chooser.Prepare(0, world.Prompt(true), kTenant), slow);
  }
  EXPECT_EQ(Serve(chooser, world, true), "");
}

TEST(DrafterChooserTest, ExplainsWhatDecideDoes) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 60)).ok());
  Serve(chooser, world, true);
  const TokenIds prompt = world.Prompt(true);
  const v1::ChoiceExplanation explanation = chooser.Explain(0, prompt, kTenant, kDrafters);
  const DrafterDecision decision = chooser.Decide(0, chooser.Prepare(0, prompt, kTenant), kDrafters);
  EXPECT_EQ(explanation.drafter(), kDrafters[*decision.drafter]);
  EXPECT_EQ(explanation.reason(), decision.reason);
  ASSERT_EQ(explanation.candidates_size(), 3);
  EXPECT_EQ(explanation.candidates(0).drafter(), "");
  const v1::CandidateExplanation& code = explanation.candidates(2);
  EXPECT_EQ(code.drafter(), "code");
  EXPECT_DOUBLE_EQ(code.acceptance().mean(), decision.predicted->mean);
  EXPECT_GT(code.tokens_per_second(), explanation.candidates(0).tokens_per_second());
  EXPECT_EQ(explanation.features_size(), 16);
  EXPECT_EQ(explanation.verify_seconds_size(), 5);
}

TEST(DrafterChooserTest, FeaturesFromBeforeAFitTeachNothing) {
  DrafterChooser chooser = Chooser();
  World world;
  const PromptHandle early = chooser.Prepare(0, world.Prompt(true), kTenant);
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 20)).ok());
  const double before = chooser.Explain(0, {1}, kTenant, kDrafters).candidates(1).samples();
  chooser.Observe(0, "prose", early, 0.5, 1.0);
  EXPECT_EQ(chooser.Explain(0, {1}, kTenant, kDrafters).candidates(1).samples(), before);
  EXPECT_TRUE(chooser.Decide(0, early, kDrafters).drafter.has_value());
}

TEST(DrafterChooserTest, SavedAndLoadedDecidesTheSame) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 40)).ok());
  for (int i = 0; i < 20; ++i) Serve(chooser, world, world.NextIsCode());
  // Through bytes, as a file has it.
  v1::LearnedRouting state;
  ASSERT_TRUE(state.ParseFromString(chooser.Save().SerializeAsString()));
  DrafterChooser loaded = Chooser();
  ASSERT_TRUE(loaded.Load(state).ok());
  const TokenIds prompt = world.Prompt(true);
  EXPECT_EQ(loaded.Explain(0, prompt, kTenant, kDrafters).DebugString(),
            chooser.Explain(0, prompt, kTenant, kDrafters).DebugString());
}

TEST(DrafterChooserTest, StatesThatDoNotFitAreRefused) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 40)).ok());
  Serve(chooser, world, true);
  const v1::LearnedRouting good = chooser.Save();
  DrafterChooser loaded = Chooser();
  const auto error = [&loaded](const v1::LearnedRouting& state) {
    const absl::Status status = loaded.Load(state);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(loaded.Explain(0, {1}, kTenant, kDrafters).features_fitted()) << "without a change";
    return std::string(status.message());
  };
  EXPECT_THAT(error({}), HasSubstr("format_version: 0, expected 1"));
  v1::LearnedRouting state = good;
  state.mutable_models(0)->set_vocabulary_fingerprint(6);
  EXPECT_THAT(error(state), HasSubstr("model \"target\": was learned with a vocabulary that is not"));
  state = good;
  state.mutable_models(0)->mutable_drafters(0)->mutable_regression()->clear_gram();
  EXPECT_THAT(error(state), HasSubstr("drafter \"code\": regression"));
  state = good;
  state.mutable_models(0)->mutable_drafters(1)->set_drafter("code");
  EXPECT_THAT(error(state), HasSubstr("twice"));
  state = good;
  state.mutable_models(0)->set_verify_seconds(0, -1.0);
  EXPECT_THAT(error(state), HasSubstr("verify_seconds"));
  state = good;
  state.mutable_models(0)->set_plain_correction(0.1);
  EXPECT_THAT(error(state), HasSubstr("correction: 0.1"));
  state = good;
  state.mutable_models(0)->mutable_drafters(0)->set_exposed_level_seconds(-1.0);
  EXPECT_THAT(error(state), HasSubstr("not numbers of seconds"));
  // Another router's models are not ours to judge.
  state = good;
  state.mutable_models(0)->set_model("other");
  EXPECT_TRUE(loaded.Load(state).ok());
}

// Every prefix and many single-byte changes of a real file: an error or a usable state, nothing else.
TEST(DrafterChooserTest, DamagedFilesNeverHarm) {
  DrafterChooser chooser = Chooser();
  World world;
  ASSERT_TRUE(chooser.Calibrate(0, CalibrationPrompts(world, 12)).ok());
  const std::string good = chooser.Save().SerializeAsString();
  std::mt19937 random(23);
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = good;
    if (i % 3 == 0) {
      bytes.resize(random() % good.size());
    } else {
      for (int change = 0; change < 1 + i % 4; ++change)
        bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    v1::LearnedRouting state;
    if (!state.ParseFromString(bytes)) continue;
    DrafterChooser loaded = Chooser();
    if (!loaded.Load(state).ok()) continue;
    const v1::ChoiceExplanation explanation = loaded.Explain(0, world.Prompt(true), kTenant, kDrafters);
    for (const v1::CandidateExplanation& candidate : explanation.candidates()) {
      EXPECT_GE(candidate.acceptance().mean(), 0.0) << "damage " << i;
      EXPECT_LE(candidate.acceptance().mean(), 0.98) << "damage " << i;
    }
  }
}

TEST(DrafterChooserTest, AbandonedRequestsAreNoLongerPending) {
  DrafterChooser chooser = Chooser();
  World world;
  std::vector<DrafterDecision> running;
  std::map<size_t, int> explored;
  for (int i = 0; i < 50; ++i) {
    running.push_back(chooser.Decide(0, chooser.Prepare(0, world.Prompt(true), kTenant), kDrafters));
    ++explored[*running.back().drafter];
  }
  EXPECT_EQ(explored[0], 25);
  EXPECT_EQ(chooser.Decide(0, chooser.Prepare(0, {1}, kTenant), kDrafters).reason, "auto");
  running.clear();
  EXPECT_EQ(chooser.Decide(0, chooser.Prepare(0, {1}, kTenant), kDrafters).reason, "explore");
}

TEST(DrafterChooserVocabularyTest, KnowsHowDraftersFit) {
  DrafterChooser chooser(
      {}, {{.name = "a", .vocabulary_fingerprint = 5}, {.name = "b", .vocabulary_fingerprint = 6}});
  EXPECT_EQ(chooser.FitOf(0, "d"), VocabularyFit::kIds) << "it has said nothing";
  EXPECT_TRUE(chooser.TellVocabularies("d", {.own = 5, .bridged = {}, .by_text = {6}}));
  EXPECT_EQ(chooser.FitOf(0, "d"), VocabularyFit::kIds);
  EXPECT_EQ(chooser.FitOf(1, "d"), VocabularyFit::kText);
  EXPECT_FALSE(chooser.TellVocabularies("d", {.own = 5, .bridged = {}, .by_text = {6}})) << "no news";
  EXPECT_TRUE(chooser.TellVocabularies("d", {.own = 7, .bridged = {5}, .by_text = {}}));
  EXPECT_EQ(chooser.FitOf(0, "d"), VocabularyFit::kIds);
  EXPECT_EQ(chooser.FitOf(1, "d"), VocabularyFit::kNone);
  EXPECT_TRUE(chooser.TellVocabularies("d", {}));
  EXPECT_EQ(chooser.FitOf(1, "d"), VocabularyFit::kIds) << "a source guesses in any";
}

}  // namespace
}  // namespace tandem::router
