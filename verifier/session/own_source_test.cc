#include "verifier/session/own_source.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/engine/block_pool.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/score_calibration.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verifier/session/session.h"

namespace tandem {
namespace {

constexpr int32_t kVocabulary = 32000;

// Keeps what it was given.
struct Given {
  TokenIds prompt;
  TokenIds output;
  size_t most_at_once = 0;
};

class RecordingSource final : public DraftSource {
 public:
  explicit RecordingSource(Given* given) : given_(given) {}
  void Start(absl::Span<const TokenId>, uint32_t) override { FAIL() << "the prompt is read in parts"; }
  void Read(absl::Span<const TokenId> prompt) override { Keep(prompt, given_->prompt); }
  void Observe(absl::Span<const TokenId> committed) override { Keep(committed, given_->output); }
  std::vector<ProposedNode> Propose(const ProposalLimits&) const override {
    return {{.token = 1, .score = 1.0f}};
  }

 private:
  void Keep(absl::Span<const TokenId> tokens, TokenIds& kept) {
    kept.insert(kept.end(), tokens.begin(), tokens.end());
    given_->most_at_once = std::max(given_->most_at_once, tokens.size());
  }
  Given* const given_;
};

TEST(OwnSourceTest, ALongPromptIsReadInStepsAndOnce) {
  SessionRequest request;
  for (int i = 0; i < 20000; ++i) request.prompt.push_back(static_cast<TokenId>(i * 7 % kVocabulary));
  for (int i = 0; i < 50; ++i) request.emitted.push_back(static_cast<TokenId>(i));
  request.max_tokens = 100;
  const TokenIds prompt = request.prompt;
  const TokenIds emitted = request.emitted;
  BlockPool pool({.num_blocks = 20200 / kBlockTokens});
  const WindowLimits limits;
  absl::StatusOr<std::unique_ptr<WindowPolicy>> policy = MakeWindowPolicy("fixed");
  ASSERT_TRUE(policy.ok()) << policy.status();
  Session session(1, std::move(request), *std::move(policy), limits, &pool, kVocabulary);
  Given given;
  ScoreCalibration calibration;
  const ManualClock clock;
  session.AddSource(
      OwnSource(DraftOrigin::kLocal, std::make_unique<RecordingSource>(&given), 0, &calibration, &clock));

  ASSERT_TRUE(session.Start(0).ok());
  EXPECT_LT(given.prompt.size(), prompt.size());
  EXPECT_EQ(session.GuessLocally().nodes, 0u) << "the end of the text is not there yet";
  std::vector<StepRow> rows;
  while (!session.prefilled()) session.PlanPrefill(2048, 0, rows);
  EXPECT_EQ(given.prompt, prompt);
  EXPECT_EQ(given.output, emitted);
  EXPECT_LE(given.most_at_once, 4096u);
  EXPECT_EQ(session.GuessLocally().nodes, 1u);

  session.Preempt();
  ASSERT_TRUE(session.Start(0).ok());
  EXPECT_EQ(given.prompt.size(), prompt.size()) << "nothing is read again";
  EXPECT_EQ(session.GuessLocally().nodes, 1u);
}

// Proposes the same whenever it is asked, and takes a second for it.
class SlowSource final : public DraftSource {
 public:
  SlowSource(std::vector<ProposedNode> nodes, ManualClock* clock) : nodes_(std::move(nodes)), clock_(clock) {}
  void Start(absl::Span<const TokenId>, uint32_t) override {}
  void Read(absl::Span<const TokenId>) override {}
  void Observe(absl::Span<const TokenId>) override {}
  std::vector<ProposedNode> Propose(const ProposalLimits&) const override {
    clock_->Advance(absl::Seconds(1));
    return nodes_;
  }

 private:
  const std::vector<ProposedNode> nodes_;
  ManualClock* const clock_;
};

TEST(OwnSourceTest, ProposesOnceForEveryText) {
  ManualClock clock;
  ScoreCalibration calibration;
  // The third has a token that the target does not have; the fourth is below it.
  std::vector<ProposedNode> nodes = {{.token = 5, .score = 0.5f},
                                     {.parent = 0, .token = 6, .score = 0.5f},
                                     {.token = kVocabulary, .score = 0.4f},
                                     {.parent = 2, .token = 7, .score = 0.9f}};
  OwnSource own(DraftOrigin::kPrediction, std::make_unique<SlowSource>(std::move(nodes), &clock), 3,
                &calibration, &clock);
  OwnSource::Limits limits{.num_tokens = 3, .vocab_size = kVocabulary};
  const RoundTree tree = own.Candidates(limits);
  ASSERT_EQ(tree.size(), 2u);
  EXPECT_EQ(tree[1].token, 6);
  EXPECT_EQ(tree[1].parent, 0u);
  EXPECT_EQ(tree[1].guesses.credited(), DraftOrigin::kPrediction);
  EXPECT_FLOAT_EQ(tree[1].path_score,
                  tree[0].path_score * static_cast<float>(calibration.Calibrated(0.0f, 2, 0.5f)));
  limits.least_path_score = tree[0].path_score;
  EXPECT_EQ(own.Candidates(limits).size(), 1u) << "the other one is not likely enough";
  EXPECT_EQ(own.seconds(), 1.0);
  // After another token it is asked again.
  limits.num_tokens = 4;
  EXPECT_TRUE(own.Candidates(limits).empty()) << "it has not read all";
  own.Read(TokenIds{1, 2, 3, 4}, 3);
  EXPECT_EQ(own.Candidates(limits).size(), 1u);
  EXPECT_EQ(own.seconds(), 2.0);
  own.ForgetCosts();
  EXPECT_EQ(own.seconds(), 0.0);
}

}  // namespace
}  // namespace tandem
