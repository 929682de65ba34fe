// What requests that ask for traces are told of their rounds.

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "common/base/node_index.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

class RoundTraceTest : public SchedulerTest {
 protected:
  void Begin(bool trace_rounds, bool trace_trees = false) {
    Make({.limits = {.max_depth = 4, .nodes_per_level = 1}, .window_policy = "fixed"});
    scheduler_->OnLinkUp(kLink);
    SessionRequest request{.prompt = ask_.prompt,
                           .max_tokens = ask_.rules.max_tokens,
                           .sampling = ask_.sampling,
                           .output = std::make_unique<OutputAssembler>(TestTokenizer(), ask_.rules),
                           .trace_rounds = trace_rounds,
                           .trace_trees = trace_trees};
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

// Traced or not: of the candidates, two that were right, one that was not, and none of what lies below it.
TEST_F(RoundTraceTest, ReportsTellWhatTheTargetJudged) {
  Begin(/*trace_rounds=*/false);
  scheduler_->Step();
  AnswerOpens();
  Draft(ask_, 2, 2);
  scheduler_->Step();
  const std::vector<JudgedNode> judged = records_[1].rounds.back().judged;
  ASSERT_EQ(judged.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(judged[i].accepted, i < 2);
    EXPECT_FLOAT_EQ(judged[i].score, 0.9f);
    EXPECT_NEAR(judged[i].calibrated, 0.9, 1e-6);  // Of which nothing is known yet.
  }
  RunToTheEnd();
}

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
    EXPECT_EQ(rounds[i].forward_start, trace.verify_start);
    EXPECT_EQ(rounds[i].forward_time, trace.verify_time);
    EXPECT_EQ(rounds[i].with_prefill, i == 0) << "a prompt this short is computed with its first round";
    for (const GrowthTrace& growth : trace.growth) sent += growth.nodes;
    EXPECT_TRUE(trace.tree.empty()) << "nobody asked for it";
    // Nothing is kept from one round to the next but its drafts.
    EXPECT_LE(trace.growth.size(), 1u);
  }
  EXPECT_GE(sent, records_[1].summary.draft_tokens);
}

// What the owner does while nothing is computed is no part of the pass.
// Whoever reads the output, and how fast, has no part in it.
TEST_F(RoundTraceTest, RoundsAfterTheFirstTellHowFastARequestWent) {
  Make();
  ASSERT_TRUE(Submit(1, {.rules = {.max_tokens = 40}}).ok());
  RunToTheEnd();
  const SessionSummary& summary = records_[1].summary;
  EXPECT_EQ(summary.decode_tokens, 39u);
  EXPECT_NEAR(summary.decode_seconds, 39 * 0.002, 1e-6);
}

TEST_F(RoundTraceTest, APassIsTimedWithoutWhatTheOwnerDoesMeanwhile) {
  Begin(/*trace_rounds=*/false);
  scheduler_->Step();
  const size_t num_tokens = records_[1].tokens.size();
  ASSERT_TRUE(scheduler_->Forward());
  clock_.Advance(absl::Milliseconds(5));
  scheduler_->Await();
  clock_.Advance(absl::Milliseconds(5));
  scheduler_->Await();
  EXPECT_EQ(records_[1].tokens.size(), num_tokens);
  scheduler_->Conclude();
  EXPECT_EQ(records_[1].tokens.size(), num_tokens + 1);
  EXPECT_EQ(records_[1].rounds.back().forward_time, absl::Milliseconds(2));
  RunToTheEnd();
  ExpectReference(1, ask_);
}

// A device goes on meanwhile. What nobody waited for took nobody knows how long, and says nothing of steps.
TEST_F(RoundTraceTest, APassThatOverlapsIsTimedFromItsStart) {
  overlaps_ = true;
  Begin(/*trace_rounds=*/false);
  const auto step = [&](absl::Duration owner) {
    EXPECT_TRUE(scheduler_->Forward());
    clock_.Advance(owner);
    scheduler_->Conclude();
    return records_[1].rounds.back().forward_time;
  };
  EXPECT_EQ(step(absl::Milliseconds(1)), absl::Milliseconds(2));
  const double seconds = scheduler_->round_time().Seconds(1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(step(absl::Milliseconds(9)), absl::Milliseconds(9));
  EXPECT_EQ(scheduler_->round_time().Seconds(1), seconds);
  RunToTheEnd();
  ExpectReference(1, ask_);
}

// Chains of two that are right and two that are not: each node hangs from the one before, and what is
// accepted are the tokens that the round commits.
TEST_F(RoundTraceTest, TellTheTreeAndWhatWasAcceptedOfIt) {
  Begin(/*trace_rounds=*/true, /*trace_trees=*/true);
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask_, 2, 2);
  });
  const std::vector<RoundReport>& rounds = records_[1].rounds;
  ASSERT_EQ(traces_.size(), rounds.size());
  const TokenIds& output = records_[1].tokens;
  size_t offset = 0;
  size_t accepted_in_all = 0;
  for (size_t i = 0; i < rounds.size(); ++i) {
    const RoundTree& tree = traces_[i]->tree;
    ASSERT_EQ(tree.size(), rounds[i].nodes);
    for (uint32_t node = 0; node < tree.size(); ++node) {
      EXPECT_EQ(PlaceAfterRoot(tree[node].parent), node) << "a chain";
      EXPECT_FLOAT_EQ(tree[node].score, 0.9f);
    }
    ASSERT_EQ(traces_[i]->accepted.size(), rounds[i].accepted);
    for (uint32_t node = 0; node < rounds[i].accepted; ++node) {
      EXPECT_EQ(traces_[i]->accepted[node], node);
      EXPECT_EQ(tree[node].token, output[offset + node]);
    }
    accepted_in_all += rounds[i].accepted;
    offset += rounds[i].committed;
  }
  EXPECT_GT(accepted_in_all, 0u);
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
