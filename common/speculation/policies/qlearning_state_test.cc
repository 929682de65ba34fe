#include "common/speculation/policies/qlearning_state.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/speculation/policies/qlearning_policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

QLearningState Parsed(const std::string& bytes) {
  const absl::StatusOr<QLearningState> state = QLearningState::Parse(bytes);
  EXPECT_TRUE(state.ok()) << state.status();
  return state.value_or(QLearningState{});
}

std::string Merged(const std::string& stored, const std::string& newer) {
  const absl::StatusOr<std::string> merged = MergePolicyStates(stored, newer);
  EXPECT_TRUE(merged.ok()) << merged.status();
  return merged.value_or("");
}

TEST(QLearningStateTest, IsTheSameAfterItWasBytes) {
  const QLearningState state{
      .prompts = 7,
      .fresh_prompts = 1,
      .entries = {{.state = 3, .action = 0, .value = -0.5F, .visits = 4, .fresh = 4},
                  {.state = 3, .action = 8, .value = 1.25F, .visits = QLearningState::kMostVisits}}};
  const std::string bytes = state.Serialize();
  EXPECT_EQ(bytes.size(), 16u + 2 * 14);
  EXPECT_EQ(Parsed(bytes), state);
  QLearningState turned = state;
  std::reverse(turned.entries.begin(), turned.entries.end());
  EXPECT_EQ(turned.Serialize(), bytes);
}

TEST(QLearningStateTest, KeepsWhatWasVisitedMostWhereNotAllFits) {
  QLearningState state;
  for (int i = 0; i < 400; ++i) {
    state.entries.push_back({.state = static_cast<uint8_t>(i / 20),
                             .action = static_cast<uint8_t>(i % 20),
                             .visits = static_cast<uint32_t>(1 + i)});
  }
  const std::string bytes = state.Serialize();
  EXPECT_LE(bytes.size(), kMaxPolicyStateBytes);
  const QLearningState kept = Parsed(bytes);
  ASSERT_EQ(kept.entries.size(), QLearningState::kMostEntries);
  for (const QLearningState::Entry& entry : kept.entries) {
    EXPECT_GT(entry.visits, 400 - QLearningState::kMostEntries);
  }
}

TEST(QLearningStateTest, RefusesBytesThatNobodyWrote) {
  const QLearningState good{.prompts = 2,
                            .fresh_prompts = 1,
                            .entries = {{.state = 1, .action = 1, .value = 1.0F, .visits = 3, .fresh = 2},
                                        {.state = 1, .action = 2, .value = 1.0F, .visits = 1, .fresh = 1}}};
  const std::string bytes = good.Serialize();
  const auto error = [](const std::string& bad) {
    return std::string(QLearningState::Parse(bad).status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("0 bytes, expected 16 to 4096"));
  EXPECT_THAT(error(std::string(5000, 'x')), HasSubstr("5000 bytes"));
  EXPECT_THAT(error(std::string(16, 'x')), HasSubstr("expected \"TQ\" and version 1"));
  EXPECT_THAT(error(bytes + "x"), HasSubstr("byte 12: 2 entries in 29 bytes"));
  EXPECT_THAT(error(bytes.substr(0, bytes.size() - 14)), HasSubstr("byte 12: 2 entries in 14 bytes"));
  const auto with = [&](auto change) {
    QLearningState bad = good;
    change(bad);
    return error(bad.Serialize());
  };
  EXPECT_THAT(with([](auto& bad) { bad.fresh_prompts = 3; }), HasSubstr("byte 4: 3 fresh ones of 2 prompts"));
  EXPECT_THAT(with([](auto& bad) { bad.entries[0].visits = 0; }), HasSubstr("byte 22: 0 visits"));
  EXPECT_THAT(with([](auto& bad) { bad.entries[0].visits = uint32_t{1} << 31; }), HasSubstr("byte 22"));
  EXPECT_THAT(with([](auto& bad) { bad.entries[1].fresh = 2; }), HasSubstr("byte 40: 2 fresh visits of 1"));
  EXPECT_THAT(with([](auto& bad) { bad.entries[1].action = 1; }), HasSubstr("increasing order"));
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -2e6F}) {
    EXPECT_THAT(with([&](auto& bad) { bad.entries[0].value = value; }), HasSubstr("byte 18: a value of"));
  }
}

TEST(QLearningStateTest, SurvivesAnyBytes) {
  const uint32_t seed = 20260101;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const QLearningState good{.prompts = 9, .entries = {{.state = 1, .action = 2, .value = 1.0F, .visits = 3}}};
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good.Serialize();
    for (uint32_t changes = 1 + random() % 4; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % 64);
    const absl::StatusOr<QLearningState> state = QLearningState::Parse(bytes);
    if (state.ok()) {
      EXPECT_EQ(state->Serialize(), bytes);
    }
    // Whatever it is given, the agent answers with windows that the limits allow.
    const std::unique_ptr<WindowPolicy> agent = MakeQLearningPolicy({}, 1, bytes);
    const RoundCosts costs{.limits = {.max_depth = 4}};
    for (int round = 0; round < 3; ++round) {
      const uint32_t depth = agent->NextDepth(costs);
      ASSERT_LE(depth, 4u);
      agent->Observe({.depth = depth, .accepted = depth / 2, .rejected = true});
    }
    ASSERT_TRUE(QLearningState::Parse(agent->ExportState()).ok());
  }
}

TEST(MergePolicyStatesTest, SessionsThatFollowEachOtherAddUp) {
  const QLearningState first{.prompts = 1,
                             .fresh_prompts = 1,
                             .entries = {{.state = 3, .action = 3, .value = 0.7F, .visits = 5, .fresh = 5}}};
  const std::string kept = Merged("", first.Serialize());
  EXPECT_EQ(Parsed(kept), (QLearningState{.prompts = 1, .entries = {{3, 3, 0.7F, 5, 0}}}));
  // The next one began with that.
  const QLearningState second{
      .prompts = 2, .fresh_prompts = 1, .entries = {{3, 3, 0.9F, 9, 4}, {3, 4, 0.2F, 1, 1}}};
  EXPECT_EQ(Parsed(Merged(kept, second.Serialize())),
            (QLearningState{.prompts = 2, .entries = {{3, 3, 0.9F, 9, 0}, {3, 4, 0.2F, 1, 0}}}));
}

TEST(MergePolicyStatesTest, SessionsAtTheSameTimeAreAveraged) {
  const QLearningState start{.prompts = 10, .entries = {{2, 2, 0.5F, 100, 0}, {2, 3, 0.4F, 7, 0}}};
  // Three visits of one and one of the other; only the second touched (2, 3).
  const QLearningState left{
      .prompts = 11, .fresh_prompts = 1, .entries = {{2, 2, 1.0F, 103, 3}, {2, 3, 0.4F, 7, 0}}};
  const QLearningState right{
      .prompts = 11, .fresh_prompts = 1, .entries = {{2, 2, 0.6F, 101, 1}, {2, 3, 0.8F, 9, 2}}};
  const QLearningState both{.prompts = 12, .entries = {{2, 2, 0.9F, 104, 0}, {2, 3, 0.8F, 9, 0}}};
  EXPECT_EQ(Parsed(Merged(Merged(start.Serialize(), left.Serialize()), right.Serialize())), both);
  // Whichever ends first.
  EXPECT_EQ(Parsed(Merged(Merged(start.Serialize(), right.Serialize()), left.Serialize())), both);
}

TEST(MergePolicyStatesTest, AStoreThatCannotBeReadCountsAsNone) {
  const QLearningState newer{.prompts = 4, .fresh_prompts = 1, .entries = {{1, 1, 0.5F, 6, 2}}};
  for (const std::string stored : {"", "nonsense", "TQ\x02 of a later version"}) {
    EXPECT_EQ(Parsed(Merged(stored, newer.Serialize())),
              (QLearningState{.prompts = 4, .entries = {{1, 1, 0.5F, 6, 0}}}));
  }
  EXPECT_EQ(MergePolicyStates(newer.Serialize(), "nonsense").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MergePolicyStatesTest, CountsStopAtTheirLargest) {
  constexpr uint32_t kMost = QLearningState::kMostVisits;
  const QLearningState full{.prompts = kMost, .entries = {{1, 1, 0.5F, kMost, 0}}};
  const QLearningState newer{
      .prompts = kMost, .fresh_prompts = kMost, .entries = {{1, 1, 0.25F, kMost, kMost}}};
  const QLearningState merged = Parsed(Merged(full.Serialize(), newer.Serialize()));
  EXPECT_EQ(merged.prompts, kMost);
  EXPECT_THAT(merged.entries, ElementsAre(QLearningState::Entry{1, 1, 0.375F, kMost, 0}));
}

// One session of an agent: `rounds` of which each accepts at most `most`.
std::pair<std::vector<uint32_t>, std::string> Serve(const QLearningOptions& options,
                                                    const std::string& learned, uint32_t most,
                                                    int rounds = 40) {
  const std::unique_ptr<WindowPolicy> agent = MakeQLearningPolicy(options, /*seed=*/0, learned);
  const RoundCosts costs{.limits = {.max_depth = 6}};
  std::vector<uint32_t> windows;
  for (int i = 0; i < rounds; ++i) {
    const uint32_t depth = agent->NextDepth(costs);
    windows.push_back(depth);
    agent->Observe({.depth = depth, .accepted = std::min(depth, most), .rejected = depth > most});
  }
  return {windows, agent->ExportState()};
}

TEST(QLearningAcrossPromptsTest, ExploresDuringItsWarmUpAndIsGreedyAfterwards) {
  const QLearningOptions options{.exploration = 0.5, .warmup_prompts = 25, .initial_value = 0.0};
  std::string learned;
  std::vector<uint32_t> windows;
  const auto changes = [&] {
    int count = 0;
    for (size_t i = 1; i < windows.size(); ++i) count += windows[i] != windows[i - 1] ? 1 : 0;
    return count;
  };
  std::vector<uint32_t> first;
  for (int prompt = 0; prompt < 25; ++prompt) {
    std::string after;
    std::tie(windows, after) = Serve(options, learned, /*most=*/2);
    EXPECT_GT(changes(), 8) << "prompt " << prompt;
    // The same seed does not try the same windows with every prompt.
    if (prompt == 1) {
      EXPECT_NE(windows, first);
    }
    first = windows;
    learned = Merged(learned, after);
  }
  EXPECT_EQ(Parsed(learned).prompts, 25u);
  std::tie(windows, std::ignore) = Serve(options, learned, 2);
  // At most a step to the cycle it has found best, from its very first round on.
  EXPECT_LE(changes(), 1);
  EXPECT_GE(windows.back(), 1u);
  EXPECT_LE(windows.back(), 2u);
}

TEST(QLearningAcrossPromptsTest, WhatTaughtNothingIsNotExported) {
  EXPECT_THAT(MakeQLearningPolicy({}, 1)->ExportState(), IsEmpty());
  const auto [windows, learned] = Serve({}, "", 2);
  // Rounds that got no drafts.
  const std::unique_ptr<WindowPolicy> agent = MakeQLearningPolicy({.initial_depth = 3}, 1, learned);
  EXPECT_THAT(agent->ExportState(), IsEmpty());
}

TEST(QLearningAcrossPromptsTest, ValuesThatNoRewardsLeadToAreNotTaken) {
  const QLearningOptions options{
      .discount = 0.5, .exploration = 0.0, .initial_value = 1.0, .initial_depth = 2};
  // No more than 1 / (1 - 0.5).
  const QLearningState hostile{.prompts = 99, .entries = {{2, 6, 1e5F, 9, 0}, {6, 6, 1e5F, 9, 0}}};
  EXPECT_EQ(Serve(options, hostile.Serialize(), 1).first.front(), 0u) << "all alike, so the smallest";
  const QLearningState sane{.prompts = 99, .entries = {{2, 6, 1.5F, 9, 0}}};
  EXPECT_EQ(Serve(options, sane.Serialize(), 1).first.front(), 6u);
}

TEST(QLearningAcrossPromptsTest, OtherPoliciesHaveNothingToPassOn) {
  for (const std::string& name : WindowPolicyNames()) {
    if (name == "qlearning") continue;
    EXPECT_THAT((*MakeWindowPolicy(name, {}, {.learned = "anything"}))->ExportState(), IsEmpty()) << name;
  }
}

}  // namespace
}  // namespace tandem
