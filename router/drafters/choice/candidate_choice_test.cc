#include "router/drafters/choice/candidate_choice.h"

#include "gtest/gtest.h"
#include "router/drafters/choice/testing/theorem_three.h"

namespace tandem::router {
namespace {

const VerifySeconds kSlowVerify = {10, 10.5, 11, 11.5, 12, 12.5, 13, 13.5, 14};

Candidate Known(const std::string& name, double acceptance, double level_seconds) {
  return {.drafter = name,
          .acceptance = {.mean = acceptance},
          .samples = 100,
          .costs = DraftCosts{.exposed_level_seconds = level_seconds}};
}

CandidateChoice Choose(const std::vector<Candidate>& candidates, const VerifySeconds& verify = kSlowVerify,
                       double plain_correction = 1.0) {
  return ChooseCandidate(candidates, verify, {.correction = plain_correction}, {}, /*draw=*/1.0);
}

TEST(CandidateChoiceTest, AcceptanceAgainstCosts) {
  // The larger drafter accepts more, and pays only as long as it costs little more.
  EXPECT_EQ(Choose({Known("small", 0.6, 1.0), Known("large", 0.7, 1.5)}).candidate, 1u);
  EXPECT_EQ(Choose({Known("small", 0.6, 1.0), Known("large", 0.7, 4.0)}).candidate, 0u);
  EXPECT_EQ(Choose({Known("small", 0.6, 1.0)}).reason, kReasonAuto);
}

TEST(CandidateChoiceTest, PlainDecodingIsACandidate) {
  EXPECT_EQ(Choose({Known("slow", 0.5, 30.0)}).candidate, std::nullopt);
  EXPECT_EQ(Choose({Known("never right", 0.0, 0.0)}).candidate, std::nullopt) << "a tie";
  EXPECT_EQ(Choose({}).candidate, std::nullopt);
  EXPECT_EQ(Choose({}, {}).candidate, std::nullopt);
}

TEST(CandidateChoiceTest, TwoCandidatesAreTheoremThree) {
  for (const double acceptance : {0.2, 0.4, 0.55, 0.62, 0.7, 0.9}) {
    for (const double seconds : {0.3, 1.0, 2.5, 6.0}) {
      const Candidate one = Known("one", 0.6, 1.2);
      const Candidate other = Known("other", acceptance, seconds);
      const auto plan = [](const Candidate& candidate) {
        const WindowForecast best = BestWindow(candidate.acceptance.mean, *candidate.costs, kSlowVerify);
        return DraftPlan{.forecast = best,
                         .verify_seconds = kSlowVerify[best.window],
                         .draft_seconds = candidate.costs->exposed_level_seconds};
      };
      EXPECT_EQ(Choose({one, other}).candidate == 1u, OtherDrafterPays(plan(one), plan(other), 200))
          << acceptance << " " << seconds;
    }
  }
}

TEST(CandidateChoiceTest, TiesGoToTheFirst) {
  EXPECT_EQ(Choose({Known("a", 0.6, 1.0), Known("b", 0.6, 1.0)}).candidate, 0u);
}

TEST(CandidateChoiceTest, ExploresTheOneWithTheFewestSamples) {
  std::vector<Candidate> candidates = {Known("a", 0.9, 0.1), Known("b", 0.1, 9.0), Known("c", 0.1, 9.0)};
  candidates[1].samples = 20;
  candidates[2].samples = 18;
  EXPECT_EQ(Choose(candidates).candidate, 2u);
  EXPECT_EQ(Choose(candidates).reason, kReasonExplore);
  candidates[2].pending = 4;  // Requests on their way count.
  EXPECT_EQ(Choose(candidates).candidate, 1u);
  candidates[1].pending = 5;
  candidates[2].pending = 7;
  EXPECT_EQ(Choose(candidates).candidate, 0u);
}

TEST(CandidateChoiceTest, RequestsThatTaughtNothingCountAsExplored) {
  std::vector<Candidate> candidates = {Known("a", 0.9, 0.1), Known("b", 0.1, 9.0)};
  candidates[1].samples = 5;
  candidates[1].idle_finished = 19;
  EXPECT_EQ(Choose(candidates).candidate, 1u);
  candidates[1].idle_finished = 20;
  EXPECT_EQ(Choose(candidates).candidate, 0u);
}

TEST(CandidateChoiceTest, UntilItIsMeasuredADrafterIsWhatItSays) {
  Candidate fast = Known("fast", 0.6, 0.0);
  Candidate slow = Known("slow", 0.6, 0.0);
  fast.costs = slow.costs = std::nullopt;
  fast.told_level_seconds = 0.5;
  slow.told_level_seconds = 50.0;
  // Neither has to be tried for it.
  EXPECT_EQ(Choose({slow, fast}).candidate, 1u);
  EXPECT_EQ(Choose({fast, slow}).candidate, 0u);
  EXPECT_EQ(Choose({slow, fast}).reason, kReasonAuto);
  EXPECT_EQ(Choose({slow, fast}).forecasts[0].costs.hidden_level_seconds, 50.0);
  EXPECT_EQ(Choose({slow}).candidate, std::nullopt) << "plain decoding is faster";
  // What was measured of others is exposed here too, and what was measured of itself is all that counts.
  EXPECT_EQ(Choose({Known("other", 0.1, 3.0), fast}).forecasts[1].costs.exposed_level_seconds, 3.0);
  slow.costs = DraftCosts{.exposed_level_seconds = 0.1};
  EXPECT_EQ(Choose({slow, fast}).forecasts[0].costs.hidden_level_seconds, 0.0);
}

TEST(CandidateChoiceTest, WhatWasNeverTimedIsTriedOnce) {
  std::vector<Candidate> candidates = {Known("a", 0.9, 0.1), Known("b", 0.1, 9.0)};
  candidates[1].costs.reset();
  EXPECT_EQ(Choose(candidates).candidate, 1u);
  EXPECT_EQ(Choose(candidates).reason, kReasonExplore);
  EXPECT_EQ(Choose(candidates, {}).candidate, 1u) << "whether b_p is known or not";
  candidates[1].pending = 1;
  EXPECT_EQ(Choose(candidates).candidate, 0u);
  candidates[1].pending = 0;
  candidates[1].finished = 1;  // And its verifier did not say what it cost.
  EXPECT_EQ(Choose(candidates).candidate, 0u);
}

TEST(CandidateChoiceTest, RefreshesWhatWasNotUsedForLong) {
  std::vector<Candidate> candidates = {Known("a", 0.9, 0.1), Known("b", 0.1, 9.0)};
  candidates[1].idle_decisions = 511;
  EXPECT_EQ(Choose(candidates).candidate, 0u);
  candidates[1].idle_decisions = 512;
  EXPECT_EQ(Choose(candidates).candidate, 1u);
  EXPECT_EQ(Choose(candidates).reason, kReasonRefresh);
  candidates[1].pending = 1;
  EXPECT_EQ(Choose(candidates).candidate, 0u) << "one is enough";
}

TEST(CandidateChoiceTest, RefreshesPlainDecoding) {
  const std::vector<Candidate> candidates = {Known("a", 0.9, 0.1)};
  const auto choose = [&](uint64_t idle_decisions) {
    return ChooseCandidate(candidates, kSlowVerify, {.idle_decisions = idle_decisions}, {}, /*draw=*/1.0);
  };
  EXPECT_EQ(choose(511).candidate, 0u);
  EXPECT_EQ(choose(512).candidate, std::nullopt);
  EXPECT_EQ(choose(512).reason, kReasonRefresh);
}

TEST(CandidateChoiceTest, ShareOfAllGoesToEachThatIsNotScored) {
  std::vector<Candidate> candidates = {Known("best", 0.9, 0.1), Known("head", 0.1, 9.0),
                                       Known("other head", 0.1, 9.0), Known("scored", 0.1, 9.0)};
  candidates[1].scored = false;
  candidates[2].scored = false;
  const auto choose = [&](double draw, double share = 0.02) {
    return ChooseCandidate(candidates, kSlowVerify, {}, {.explore_share = share}, draw);
  };
  EXPECT_EQ(choose(0.0).candidate, 1u);
  EXPECT_EQ(choose(0.0).reason, kReasonExplore);
  EXPECT_EQ(choose(0.0199).candidate, 1u);
  EXPECT_EQ(choose(0.02).candidate, 2u);
  EXPECT_EQ(choose(0.0399).candidate, 2u);
  EXPECT_EQ(choose(0.04).candidate, 0u);
  EXPECT_EQ(choose(0.04).reason, kReasonAuto);
  EXPECT_EQ(choose(0.0, 0.0).candidate, 0u);
  EXPECT_EQ(Choose(candidates).candidate, 0u);
}

TEST(CandidateChoiceTest, UnknownCosts) {
  // Without b_p acceptance decides; without a_q a drafter costs what the others do.
  EXPECT_EQ(Choose({Known("a", 0.5, 1.0), Known("b", 0.7, 9.0)}, {}).candidate, 1u);
  std::vector<Candidate> candidates = {Known("a", 0.5, 1.0), Known("b", 0.7, 0.0)};
  candidates[1].costs.reset();
  candidates[1].finished = 1;
  const CandidateChoice choice = Choose(candidates);
  EXPECT_EQ(choice.candidate, 1u);
  EXPECT_EQ(choice.forecasts[1].costs.exposed_level_seconds, 1.0);
}

TEST(CandidateChoiceTest, CorrectionsCount) {
  std::vector<Candidate> candidates = {Known("a", 0.6, 1.0), Known("b", 0.61, 1.0)};
  candidates[1].correction = 0.9;
  EXPECT_EQ(Choose(candidates).candidate, 0u);
  EXPECT_EQ(Choose(candidates, kSlowVerify, 4.0).candidate, std::nullopt);
  // A drafter that is best left unused is plain decoding, whatever its correction.
  candidates = {Known("a", 0.0, 1.0)};
  candidates[0].correction = 2.0;
  EXPECT_EQ(Choose(candidates).candidate, std::nullopt);
}

}  // namespace
}  // namespace tandem::router
