// Draft heads are sent the states that the target computes, whatever happens to their sessions.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "verifier/testing/feature_sending_test_fixture.h"

namespace tandem {
namespace {

TEST_F(FeatureSendingTest, APromptsFeaturesComeWhileItIsComputed) {
  Scheduler::Options options = FixedWindow(3);
  options.prefill_chunk = 32;
  Make(options);
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(200), .rules = {.max_tokens = 4}};
  ASSERT_TRUE(SubmitTo(1, ask, {kLink}).ok());
  scheduler_->Step();  // No drafter has reported its needs yet.
  EXPECT_EQ(model_->num_feature_rows(), 0u);
  AnswerAll();
  for (uint32_t computed = 64; computed <= 192; computed += 32) {
    scheduler_->Step();
    const FeatureChecker& head = heads_.at(1).checker;
    ASSERT_EQ(head.first(), 32u);
    EXPECT_EQ(head.end(), computed);
    EXPECT_EQ(NumSent<Commit>(), 0u);
  }
  RunToTheEnd([&] { GrowAll({{1, ask}}); });
  ExpectReference(1, ask);
  ASSERT_EQ(closed_.size(), 1u);
  EXPECT_TRUE(closed_[0].complete());
}

TEST_F(FeatureSendingTest, ARoundsFeaturesRideInItsCommit) {
  Make(FixedWindow(4));
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(40), .rules = {.max_tokens = 40}};
  Run(1, ask);
  ASSERT_EQ(closed_.size(), 1u);
  EXPECT_TRUE(closed_[0].complete());
  EXPECT_GT(records_[1].summary.accepted_tokens, 10u);
  EXPECT_EQ(closed_[0].num_rows + *closed_[0].first, closed_[0].num_tokens - 1);
  EXPECT_GE(closed_[0].num_in_commits + 1, NumSent<Commit>());
  EXPECT_EQ(NumSent<Features>(), 0u) << "the prompt was computed before the head answered";
}

TEST_F(FeatureSendingTest, RowsAskForNothingUntilAHeadDoes) {
  Make(FixedWindow(4));
  Up(kLink);
  Ask ask{.drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    for (SessionId id : std::exchange(opened_, {})) {
      if (drafts_.contains(id)) Reply(id, SessionOpened{.epoch = drafts_.at(id).epoch});
    }
    DraftFor(1, ask, 2, 1);
  });
  ExpectReference(1, ask);
  EXPECT_EQ(model_->num_feature_rows(), 0u);
  EXPECT_EQ(NumSent<Features>(), 0u);
}

TEST_F(FeatureSendingTest, WhatThePrefixCacheHasComesWithItsFeatures) {
  Make(FixedWindow(4));
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(100), .rules = {.max_tokens = 20}};
  // The first one's prompt was computed before the verifier knew what heads need. It is not found there
  // again: its features would be missing for ever.
  Run(1, ask);
  EXPECT_GT(closed_.at(0).first.value(), 0u);
  Run(2, ask);
  EXPECT_EQ(records_[2].summary.cached_prompt_tokens, 0u);
  EXPECT_EQ(closed_.at(1).first, 0u);
  Run(3, ask);
  EXPECT_EQ(records_[3].summary.cached_prompt_tokens, 96u);
  EXPECT_EQ(closed_.at(2).first, 0u);
  EXPECT_TRUE(closed_.at(2).complete());
  // As does what it said, in the next turn of the chat.
  Ask next = ask;
  next.prompt.insert(next.prompt.end(), records_[3].tokens.begin(), records_[3].tokens.end());
  next.prompt.push_back(7);
  Run(4, next);
  EXPECT_EQ(records_[4].summary.cached_prompt_tokens, 112u);
  EXPECT_EQ(closed_.at(3).first, 0u);
  EXPECT_TRUE(closed_.at(3).complete());
}

TEST_F(FeatureSendingTest, ADrafterGetsThemFromWhereItAsksForThem) {
  Make(FixedWindow(4));
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(60), .rules = {.max_tokens = 20}};
  Run(1, ask);
  ASSERT_TRUE(SubmitTo(2, ask, {kLink}).ok());
  RunToTheEnd([&] {
    for (SessionId draft : Drafts()) Answer(draft, 41);
    GrowAll({{2, ask}});
  });
  EXPECT_EQ(closed_.at(1).first, 41u);
  EXPECT_TRUE(closed_.at(1).complete());
  // One that asks for what does not exist yet gets it when it does.
  ASSERT_TRUE(SubmitTo(3, ask, {kLink}).ok());
  RunToTheEnd([&] {
    for (SessionId draft : Drafts()) Answer(draft, 66);
    GrowAll({{3, ask}});
  });
  EXPECT_EQ(closed_.at(2).first, 66u);
  EXPECT_TRUE(closed_.at(2).complete());
}

TEST_F(FeatureSendingTest, AHeadThatAnswersLateGetsWhatTheStoreHas) {
  Make(FixedWindow(2));
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(50), .rules = {.max_tokens = 30}};
  Run(1, ask);
  ASSERT_TRUE(SubmitTo(2, ask, {kLink}).ok());
  int turns = 0;
  RunToTheEnd([&] {
    if (++turns < 8) return;
    AnswerAll();
    GrowAll({{2, ask}});
  });
  ExpectReference(2, ask);
  EXPECT_EQ(closed_.at(1).first, 0u);
  EXPECT_TRUE(closed_.at(1).complete());
  EXPECT_GT(NumSent<Features>(), 0u);
}

TEST_F(FeatureSendingTest, AnOpeningAnewStartsOver) {
  Make(FixedWindow(4));
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(40), .rules = {.max_tokens = 40}};
  Run(1, ask);
  ASSERT_TRUE(SubmitTo(2, ask, {kLink}).ok());
  int turns = 0;
  RunToTheEnd([&] {
    // It has kept the first ten of those that it got.
    for (SessionId draft : Drafts()) Answer(draft, turns > 0 ? 10 : 0);
    if (++turns == 6) Reply(2, ResyncNeeded{.epoch = drafts_.at(2).epoch, .reason = "lost the thread"});
    GrowAll({{2, ask}});
  });
  ExpectReference(2, ask);
  EXPECT_EQ(NumSent<OpenSession>(), 3u);
  EXPECT_EQ(closed_.at(1).first, 10u);
  EXPECT_TRUE(closed_.at(1).complete());
}

TEST_F(FeatureSendingTest, APreemptedSessionsHeadGetsThemAgain) {
  Make(FixedWindow(4), {.num_blocks = 16});
  Up(kLink);
  std::map<SessionId, Ask> asks;
  asks[1] = {.prompt = CountingPrompt(20, 5), .rules = {.max_tokens = 4}};
  Run(1, asks[1]);
  for (SessionId id = 2; id <= 5; ++id) {
    asks[id] = {.prompt = CountingPrompt(20 + 4 * static_cast<uint32_t>(id), static_cast<TokenId>(id)),
                .rules = {.max_tokens = 70}};
    ASSERT_TRUE(SubmitTo(id, asks[id], {id % 2 == 0 ? kLink : kHeadLink2}).ok());
  }
  Up(kHeadLink2);
  RunToTheEnd([&] {
    AnswerAll();
    GrowAll(asks);
  });
  for (const auto& [id, ask] : asks) ExpectReference(id, ask);
  EXPECT_GT(num_preemptions_, 0u);
  for (const Closed& closed : closed_) {
    // Those of the second link were asked for when its first session had been computed.
    EXPECT_TRUE(closed.complete() || closed.num_rows == 0) << closed.draft;
  }
}

TEST_F(FeatureSendingTest, ADrafterThatTakesOverGetsThemFromTheStart) {
  Make(FixedWindow(4));
  lanes_[kHeadLink2].needs = {.layers = {3, 5}, .type = FeatureType::kInt8};  // What the first one's cover.
  Up(kLink);
  Up(kHeadLink2);
  const Ask ask{.prompt = CountingPrompt(40), .rules = {.max_tokens = 40}};
  Run(1, ask);
  ASSERT_TRUE(SubmitTo(2, ask, {kLink}).ok());
  int turns = 0;
  RunToTheEnd([&] {
    AnswerAll();
    GrowAll({{2, ask}});
    if (++turns == 4) {
      EXPECT_TRUE(
          scheduler_->SwapDrafter(2, "", {.link = kHeadLink2, .name = "new", .draft_model = "other"}).ok());
    }
  });
  ExpectReference(2, ask);
  EXPECT_EQ(records_[2].summary.drafter, "new");
  ASSERT_EQ(closed_.size(), 3u);
  EXPECT_EQ(closed_[2].first, 0u);
  EXPECT_TRUE(closed_[1].complete() && closed_[2].complete());
}

TEST_F(FeatureSendingTest, AnAlternateGetsThemAfterALostConnection) {
  Make(FixedWindow(4));
  lanes_[kHeadLink2].needs = {.layers = {1}};
  Up(kLink);
  Up(kHeadLink2);
  const Ask ask{.prompt = CountingPrompt(40), .rules = {.max_tokens = 40}};
  Run(1, ask);
  ASSERT_TRUE(SubmitTo(2, ask, {kLink, kHeadLink2}).ok());
  int turns = 0;
  RunToTheEnd([&] {
    AnswerAll();
    GrowAll({{2, ask}});
    if (++turns == 4) Down(kLink);
  });
  ExpectReference(2, ask);
  EXPECT_EQ(closed_.back().first, 0u);
  EXPECT_TRUE(closed_.back().complete());
}

TEST_F(FeatureSendingTest, TwoHeadsAtATimeEachGetTheirOwn) {
  Make({.window_policy = "fixed"});
  Up(kLink);
  Up(kHeadLink2);
  const Ask ask{.prompt = CountingPrompt(30), .rules = {.max_tokens = 40}};
  for (SessionId id = 1; id <= 2; ++id) {
    ASSERT_TRUE(SubmitTo(id, ask, {kLink, kHeadLink2}, /*partner=*/true).ok());
    RunToTheEnd([&] {
      AnswerAll();
      GrowAll({{id, ask}});
    });
    ExpectReference(id, ask);
  }
  ASSERT_EQ(closed_.size(), 4u);
  for (size_t i = 2; i < 4; ++i) {
    EXPECT_EQ(closed_[i].first, 0u);
    EXPECT_TRUE(closed_[i].complete());
  }
}

// A row of the first link's head has 24 bytes.
Scheduler::Options Narrow() {
  Scheduler::Options options = FixedWindow(4);
  options.feature_limits = {
      .chunk_bytes = 100, .session_bytes = 250, .link_bytes = 400, .backlog_of_commit = 1000};
  return options;
}

TEST_F(FeatureSendingTest, ASlowLinkHoldsNoMoreThanItMayAndCatchesUp) {
  Make(Narrow());
  Up(kLink);
  std::map<SessionId, Ask> asks;
  asks[1] = {.prompt = CountingPrompt(5), .rules = {.max_tokens = 4}};
  Run(1, asks[1]);
  lanes_[kLink].held = true;
  for (SessionId id = 2; id <= 4; ++id) {
    asks[id] = {.prompt = CountingPrompt(60, static_cast<TokenId>(id)), .rules = {.max_tokens = 100}};
    ASSERT_TRUE(SubmitTo(id, asks[id], {kLink}).ok());
  }
  std::vector<uint32_t> ends;
  int turns = 0;
  RunToTheEnd([&] {
    AnswerAll();
    GrowAll(asks, 1, 0);
    ++turns;
    if (turns == 10) {
      EXPECT_GT(scheduler_->WaitingFeatureBytes(), 3u * 40 * 24);
      for (const auto& [draft, head] : heads_)
        EXPECT_EQ(head.checker.end(), 0u) << "nothing has left the link";
      EXPECT_GT(records_[2].tokens.size(), 8u) << "nobody waits for it";
      EXPECT_EQ(lanes_[kLink].bytes, 384u) << "four messages of four rows";
    }
    if (turns > 10) Drain(kLink, 6);
    if (turns == 30) {
      for (const auto& [draft, head] : heads_) ends.push_back(head.checker.end());
      lanes_[kLink].held = false;
      Drain(kLink, 100);
    }
  });
  for (const auto& [id, ask] : asks) ExpectReference(id, ask);
  EXPECT_LE(lanes_[kLink].most_bytes, 400u);
  ASSERT_EQ(ends.size(), 3u);
  for (uint32_t end : ends) EXPECT_GT(end, 20u) << "none is left behind";
  for (size_t i = 1; i < closed_.size(); ++i) {
    EXPECT_TRUE(closed_[i].complete());
    EXPECT_GT(closed_[i].num_in_commits, 3u) << "when all before them had arrived";
  }
}

TEST_F(FeatureSendingTest, AWindowMovesAsItsRowsAreUsed) {
  Make(FixedWindow(4));
  lanes_[kLink].needs.window = 10;
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(100), .rules = {.max_tokens = 60}};
  Run(1, ask);  // So that the store has the prompt from its beginning.
  Run(2, ask);
  EXPECT_EQ(closed_.at(1).end, 10u) << "nobody said that any was used";
  EXPECT_EQ(closed_.at(1).num_in_commits, 0u);

  ASSERT_TRUE(SubmitTo(3, ask, {kLink}).ok());
  uint32_t used = 0;
  RunToTheEnd([&] {
    AnswerAll();
    for (SessionId draft : Drafts()) {
      FeatureChecker& head = heads_.at(draft).checker;
      if (!head.first().has_value()) continue;
      // Of an older opening, which changes nothing, and then in fact.
      Reply(draft, FeaturesUsed{.epoch = head.epoch() + 1, .position = 1000});
      EXPECT_LE(head.end(), used + 10);
      used = head.end();
      Reply(draft, head.Use(used));
    }
    GrowAll({{3, ask}});
  });
  EXPECT_TRUE(closed_.at(2).complete());
  EXPECT_GT(closed_.at(2).num_in_commits, 0u);
  // What begins late has its window there.
  ASSERT_TRUE(SubmitTo(4, ask, {kLink}).ok());
  RunToTheEnd([&] {
    for (SessionId draft : Drafts()) Answer(draft, 70);
    GrowAll({{4, ask}});
  });
  EXPECT_EQ(closed_.at(3).first, 70u);
  EXPECT_EQ(closed_.at(3).end, 80u);
  EXPECT_TRUE(violations_.empty());
}

TEST_F(FeatureSendingTest, OneSessionLeavesRoomOnALinkForOthers) {
  Make(Narrow());
  Up(kLink);
  const Ask first{.prompt = CountingPrompt(5), .rules = {.max_tokens = 4}};
  Run(1, first);
  lanes_[kLink].held = true;
  const Ask ask{.prompt = CountingPrompt(100), .rules = {.max_tokens = 30}};
  ASSERT_TRUE(SubmitTo(2, ask, {kLink}).ok());
  RunToTheEnd([&] { AnswerAll(); });
  EXPECT_EQ(lanes_[kLink].most_bytes, 240u) << "ten rows of 24 bytes";
  ExpectReference(2, ask);
}

TEST_F(FeatureSendingTest, CommitsOfABusyLinkLeaveThemOut) {
  Make(Narrow());
  Up(kLink);
  lanes_[kLink].other_bytes = 1001;
  const Ask ask{.prompt = CountingPrompt(20), .rules = {.max_tokens = 30}};
  Run(1, ask);
  EXPECT_EQ(closed_.at(0).num_in_commits, 0u);
  EXPECT_TRUE(closed_.at(0).complete());
}

TEST_F(FeatureSendingTest, ARowLargerThanAChunkGoesAlone) {
  Scheduler::Options options = FixedWindow(4);
  options.feature_limits = {
      .chunk_bytes = 10, .session_bytes = 10, .link_bytes = 10, .backlog_of_commit = 1000};
  Make(options);
  Up(kLink);
  const Ask ask{.prompt = CountingPrompt(20), .rules = {.max_tokens = 30}};
  Run(1, ask);
  EXPECT_TRUE(closed_.at(0).complete());
  EXPECT_EQ(NumSent<Features>(), closed_.at(0).num_rows);
}

TEST_F(FeatureSendingTest, Int8AndTheFinalStateAsAskedFor) {
  Make(FixedWindow(4));
  Up(kHeadLink2);
  const Ask ask{.prompt = CountingPrompt(40),
                .sampling = {.temperature = 0.8f, .seed = 3},
                .rules = {.max_tokens = 40}};
  Run(1, ask, kHeadLink2);
  Run(2, ask, kHeadLink2);
  EXPECT_EQ(closed_.at(1).first, 0u);
  EXPECT_TRUE(closed_.at(1).complete());
}

TEST_F(FeatureSendingTest, NeedsThatTheTargetCannotMeetAreAViolation) {
  Make(FixedWindow(4));
  for (const FeatureNeeds& needs : {FeatureNeeds{.layers = {FakeEngine::kNumLayers + 1}},
                                    FeatureNeeds{.layers = {4, 4}}, FeatureNeeds{}}) {
    violations_.clear();
    lanes_[kLink].needs = needs;
    Up(kLink);
    const SessionId id = records_.size() + 1;
    const Ask ask;
    ASSERT_TRUE(SubmitTo(id, ask, {kLink}).ok());
    RunToTheEnd([&] { AnswerAll(); });
    ExpectReference(id, ask);
    EXPECT_EQ(violations_.size(), 1u);
    EXPECT_NE(records_[id].summary.drafter_lost, "");
    EXPECT_EQ(model_->num_feature_rows(), 0u);
  }
  EXPECT_TRUE(violations_[0]) << "the third one quarantines it";
}

TEST_F(FeatureSendingTest, AStandbyOrPartnerWithSuchNeedsIsDropped) {
  Make({.window_policy = "fixed"});
  Up(kLink);
  lanes_[kHeadLink2].needs = {.layers = {99}};
  Up(kHeadLink2);
  const Ask ask{.prompt = CountingPrompt(20), .rules = {.max_tokens = 40}};
  ASSERT_TRUE(SubmitTo(1, ask, {kLink, kHeadLink2}, /*partner=*/true).ok());
  ASSERT_TRUE(SubmitTo(2, ask, {kLink}).ok());
  int turns = 0;
  RunToTheEnd([&] {
    AnswerAll();
    GrowAll({{1, ask}, {2, ask}});
    if (++turns == 4) {
      EXPECT_TRUE(
          scheduler_->SwapDrafter(2, "", {.link = kHeadLink2, .name = "new", .draft_model = "other"}).ok());
    }
  });
  EXPECT_EQ(violations_.size(), 2u);
  ExpectReference(1, ask);
  ExpectReference(2, ask);
  EXPECT_EQ(records_[2].summary.drafter, absl::StrCat("drafter", kLink));
}

TEST_F(FeatureSendingTest, AnEngineOrMemoryWithoutFeaturesSaysSo) {
  for (const bool has_features : {false, true}) {
    Scheduler::Options options = FixedWindow(4);
    options.max_feature_bytes = has_features ? 100 : uint64_t{1} << 30;
    Make(options, {.has_features = has_features});
    requests_.clear();
    records_.clear();
    violations_.clear();
    checked_ = false;
    Up(kLink);
    const Ask ask{.drafted = true};
    ASSERT_TRUE(Submit(1, ask).ok());
    RunToTheEnd([&] {
      for (SessionId id : std::exchange(opened_, {})) {
        scheduler_->OnDraftResponse(
            kLink, {.session = id,
                    .event = SessionOpened{.epoch = drafts_.at(id).epoch, .features = ThreeLayers()}});
      }
    });
    ExpectReference(1, ask);
    ASSERT_FALSE(requests_.empty());
    EXPECT_EQ(std::get<OpenSession>(requests_[0].event).target_hidden_size, 0u);
    EXPECT_EQ(std::get<OpenSession>(requests_[0].event).target_layers, 0u);
    EXPECT_EQ(violations_.size(), 1u);
    EXPECT_EQ(model_->num_feature_rows(), 0u);
  }
}

TEST_F(FeatureSendingTest, AHeadForWhichThereIsNoMemoryIsLeftOut) {
  Scheduler::Options options = FixedWindow(4);
  options.max_feature_bytes = 2 * 256 * kBlockTokens * FakeEngine::kHiddenSize * 2;  // Two states.
  options.target_fingerprint = 77;
  Make(options);
  Up(kLink);
  const Ask ask;
  ASSERT_TRUE(SubmitTo(1, ask, {kLink}).ok());
  RunToTheEnd([&] { AnswerAll(); });
  ExpectReference(1, ask);
  EXPECT_TRUE(violations_.empty()) << "it is nobody's fault";
  EXPECT_NE(records_[1].summary.drafter_lost.find("no hidden states for its head"), std::string::npos);
  EXPECT_EQ(std::get<OpenSession>(requests_[0].event).target_fingerprint, 77u);
}

// Whatever happens in whatever order, a head gets what the target computes or nothing, and the output is the
// same.
TEST_F(FeatureSendingTest, AnythingAtAnyTime) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto chance = [&](uint32_t one_in) { return random() % one_in == 0; };
    Scheduler::Options options = chance(2) ? Narrow() : FixedWindow(4);
    options.prefill_chunk = chance(2) ? 16 : 128;
    overlaps_ = chance(2);
    Make(options, {.num_blocks = chance(2) ? 24u : 256u, .chooses = chance(2)}, /*prefix_cache=*/!chance(4));
    records_.clear();
    drafts_.clear();
    opened_.clear();
    closed_.clear();
    lanes_.clear();
    SetUp();
    if (chance(2)) lanes_[kHeadLink2].needs.window = 1 + static_cast<uint32_t>(random() % 30);
    Up(kLink);
    Up(kHeadLink2);
    std::map<SessionId, Ask> asks;
    int turns = 0;
    const auto happen = [&] {
      for (const LinkId link : {kLink, kHeadLink2}) {
        if (chance(6)) lanes_[link].held = !lanes_[link].held;
        if (chance(2) || !lanes_[link].held) Drain(link, lanes_[link].held ? 1 + random() % 4 : 1000);
        if (chance(40) && lanes_[link].up) Down(link);
        if (chance(3) && !lanes_[link].up) Up(link);
      }
      for (SessionId draft : Drafts()) {
        if (chance(2)) Answer(draft, chance(3) ? static_cast<uint32_t>(random() % 60) : 0);
        if (chance(25) && drafts_.contains(draft)) {
          Reply(draft, ResyncNeeded{.epoch = drafts_.at(draft).epoch, .reason = "any"});
        }
        const auto head = heads_.find(draft);
        if (head != heads_.end() && head->second.checker.first().has_value() && chance(2)) {
          Reply(draft, head->second.checker.Use(head->second.checker.end() - (chance(3) ? 1 : 0)));
        }
      }
      for (const auto& [id, ask] : asks) {
        if (chance(20)) {
          const LinkId to = chance(2) ? kLink : kHeadLink2;
          (void)scheduler_->SwapDrafter(
              id, "", {.link = to, .name = absl::StrCat("drafter", to), .draft_model = "head"});
        }
      }
      if (asks.size() < 6 && chance(3)) {
        const SessionId id = asks.size() + 1;
        asks[id] = {.prompt = CountingPrompt(1 + static_cast<uint32_t>(random() % 90),
                                             static_cast<TokenId>(random() % 3)),
                    .rules = {.max_tokens = 1 + static_cast<uint32_t>(random() % 60)}};
        std::vector<LinkId> links = {kLink, kHeadLink2};
        if (chance(2)) std::swap(links[0], links[1]);
        if (chance(3)) links.pop_back();
        ASSERT_TRUE(SubmitTo(id, asks[id], links, /*partner=*/chance(2)).ok());
      }
      GrowAll(asks, static_cast<uint32_t>(random() % 3), static_cast<uint32_t>(random() % 2));
    };
    while ((asks.size() < 6 || scheduler_->num_running() + scheduler_->num_waiting() > 0) && ++turns < 5000) {
      happen();
      const absl::Time wake = scheduler_->NextWake();
      if (wake > clock_.Now() && wake < absl::InfiniteFuture()) clock_.Advance(wake - clock_.Now());
      if (!scheduler_->Forward()) continue;
      if (chance(2)) happen();
      scheduler_->Conclude();
      ASSERT_TRUE(scheduler_->CheckBlocks().ok()) << scheduler_->CheckBlocks();
    }
    for (const auto& [id, ask] : asks) ExpectReference(id, ask);
    for (const LinkId link : {kLink, kHeadLink2}) {
      EXPECT_LE(lanes_[link].most_bytes, options.feature_limits.link_bytes);
    }
    ASSERT_TRUE(heads_.empty());
    if (HasFailure()) return;
  }
  EXPECT_TRUE(violations_.empty());
}

}  // namespace
}  // namespace tandem
