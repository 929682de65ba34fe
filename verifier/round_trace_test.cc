// What requests that ask for traces are told of their rounds.

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "verifier/scheduler_test_fixture.h"

namespace tandem {
namespace {

class RoundTraceTest : public SchedulerTest {
 protected:
  void Begin(bool trace_rounds) {
    Make({.limits = {.max_depth = 4, .nodes_per_level = 1}, .window_policy = "fixed"});
    scheduler_->OnLinkUp(kLink);
    SessionRequest request{.prompt = ask_.prompt,
                           .max_tokens = ask_.rules.max_tokens,
                           .sampling = ask_.sampling,
                           .output = std::make_unique<OutputAssembler>(TestTokenizer(), ask_.rules),
                           .trace_rounds = trace_rounds};
    request.drafter = DrafterBinding{.link = kLink, .name = "drafter", .draft_model = "draft"};
    ASSERT_TRUE(scheduler_->Submit(1, std::move(request)).ok());
  }
  void OnTokens(SessionId id, CommittedTokens tokens) override {
    traces_.push_back(tokens.trace);
    SchedulerTest::OnTokens(id, std::move(tokens));
  }

  const Ask ask_{.rules = {.max_tokens = 16}, .drafted = true};
  std::vector<std::optional<RoundTrace>> traces_;
};

TEST_F(RoundTraceTest, TellWhatEveryRoundDidAndWhatTheDrafterSent) {
  Begin(/*trace_rounds=*/true);
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask_, 2, 2);
  });
  ExpectReference(1, ask_);
  const std::vector<RoundReport>& rounds = records_[1].rounds;
  ASSERT_EQ(traces_.size(), rounds.size());
  absl::Time before = absl::InfinitePast();
  uint32_t sent = 0;
  for (size_t i = 0; i < rounds.size(); ++i) {
    ASSERT_TRUE(traces_[i].has_value());
    const RoundTrace& trace = *traces_[i];
    EXPECT_EQ(trace.report.kind, rounds[i].kind);
    EXPECT_EQ(trace.report.depth, rounds[i].depth);
    EXPECT_EQ(trace.report.nodes, rounds[i].nodes);
    EXPECT_EQ(trace.verify_time, absl::Milliseconds(2));
    EXPECT_GT(trace.verify_start, before);
    before = trace.verify_start;
    for (const GrowthTrace& growth : trace.growth) sent += growth.nodes;
    // Nothing is kept from one round to the next but its drafts.
    EXPECT_LE(trace.growth.size(), 1u);
  }
  EXPECT_GE(sent, records_[1].summary.draft_tokens);
}

TEST_F(RoundTraceTest, AFloodOfMessagesIsCutOff) {
  Begin(/*trace_rounds=*/true);
  bool flooded = false;
  RunToTheEnd([&] {
    AnswerOpens();
    if (drafts_.contains(1) && !std::exchange(flooded, true)) {
      const Grow grow = Chain(1, {7});
      const absl::Time received = absl::UnixEpoch() + absl::Seconds(3);
      for (size_t i = 0; i < kMaxTracedGrowth + 10; ++i) {
        scheduler_->OnDraftResponse(kLink, {.session = 1, .event = grow, .received = received});
      }
    }
  });
  size_t most = 0;
  for (const auto& trace : traces_) {
    most = std::max(most, trace->growth.size());
    for (const GrowthTrace& growth : trace->growth) {
      EXPECT_EQ(growth.received, absl::UnixEpoch() + absl::Seconds(3));
    }
  }
  EXPECT_EQ(most, kMaxTracedGrowth);
}

TEST_F(RoundTraceTest, OthersAreToldNothing) {
  Begin(/*trace_rounds=*/false);
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask_, 2, 2);
  });
  for (const auto& trace : traces_) EXPECT_FALSE(trace.has_value());
  EXPECT_GT(records_[1].summary.drafted_rounds, 0u);
}

}  // namespace
}  // namespace tandem
