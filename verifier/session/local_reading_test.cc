#include <algorithm>
#include <memory>
#include <utility>

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
    return {{.parent = -1, .token = 1, .score = 1.0f}};
  }

 private:
  void Keep(absl::Span<const TokenId> tokens, TokenIds& kept) {
    kept.insert(kept.end(), tokens.begin(), tokens.end());
    given_->most_at_once = std::max(given_->most_at_once, tokens.size());
  }
  Given* const given_;
};

TEST(LocalReadingTest, ALongPromptIsReadInStepsAndOnce) {
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
  session.SetLocalDrafter(std::make_unique<RecordingSource>(&given), &calibration, &clock);

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

}  // namespace
}  // namespace tandem
