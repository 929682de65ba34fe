// Requests with a constraint: their outputs are functions of model, prompt, parameters, seed and constraint
// alone, and what a drafter guesses against the constraint costs no row.

#include "verifier/session_constraint.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/grammar/token_mask.h"
#include "gmock/gmock.h"
#include "verifier/scheduler_test_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kEnd = 0;

// Allows about a third of the tokens, which ones depends on all tokens so far; every fourth token is the only
// one that may come. From the twelfth on it may end after every fourth. `dead_end`: how many tokens there are
// at most, without a way to end.
class ThirdState final : public ConstraintState {
 public:
  explicit ThirdState(size_t dead_end = SIZE_MAX) : dead_end_(dead_end) {}

  static bool Allows(const TokenIds& taken, TokenId token, size_t dead_end = SIZE_MAX) {
    if (taken.size() >= dead_end || (!taken.empty() && taken.back() == kEnd)) return false;
    uint64_t sum = taken.size();
    for (const TokenId before : taken) sum = sum * 31 + static_cast<uint64_t>(before);
    if (token == kEnd) return taken.size() >= 12 && taken.size() % 4 == 0 && dead_end == SIZE_MAX;
    if (taken.size() % 4 == 3) return token == static_cast<TokenId>(1 + sum % (kVocabSize - 1));
    return (sum + static_cast<uint64_t>(token)) % 3 == 0;
  }

  bool Accept(TokenId token) override {
    if (!Allows(taken_, token, dead_end_)) return false;
    taken_.push_back(token);
    return true;
  }
  void Rollback(uint32_t count) override { taken_.resize(taken_.size() - count); }
  void FillMask(absl::Span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (TokenId token = 0; token < kVocabSize; ++token) {
      const auto at = static_cast<uint32_t>(token);
      if (Allows(taken_, token, dead_end_)) mask[at / 32] |= 1u << (at % 32);
    }
  }
  std::string ForcedBytes() override {
    if (taken_.size() % 4 != 3) return {};
    for (TokenId token = 1; token < kVocabSize; ++token) {
      if (Allows(taken_, token, dead_end_)) return std::string(TestTokenizer()->TokenBytes(token));
    }
    return {};
  }

 private:
  const size_t dead_end_;
  TokenIds taken_;
};

class SessionConstraintTest : public SchedulerTest {
 protected:
  static Ask Constrained(float temperature, uint64_t seed = 3) {
    Ask ask;
    ask.sampling = {.temperature = temperature, .seed = seed};
    ask.rules = {.stop_tokens = {kEnd}, .max_tokens = 24};
    ask.constraint = [] { return std::make_unique<ThirdState>(); };
    return ask;
  }

  // One token after the other, each from what is allowed.
  TokenIds ConstrainedReference(const Ask& ask) const {
    TokenIds all = ask.prompt;
    TokenIds output;
    TargetSampler sampler(ask.sampling, kVocabSize, ask.prompt);
    while (output.size() < ask.rules.max_tokens && (output.empty() || output.back() != kEnd)) {
      std::vector<float> logits = model_->ReferenceLogits(all);
      for (TokenId token = 0; token < kVocabSize; ++token) {
        if (!ThirdState::Allows(output, token)) logits[static_cast<size_t>(token)] = -INFINITY;
      }
      const TokenId token = sampler.Choose(absl::MakeSpan(logits), static_cast<uint32_t>(all.size())).token;
      sampler.Append(token);
      output.push_back(token);
      all.push_back(token);
    }
    return output;
  }

  // A drafter that guesses `num_right` tokens of the output right and then one that is forbidden.
  void DraftForbidden(const Ask& ask, uint32_t num_right) {
    const TokenIds output = ConstrainedReference(ask);
    for (auto& [id, state] : drafts_) {
      if (!std::exchange(state.wants_growth, false) || state.budget.depth == 0) continue;
      const size_t done = state.tokens.size() - ask.prompt.size();
      TokenIds taken(output.begin(), output.begin() + static_cast<ptrdiff_t>(std::min(done, output.size())));
      TokenIds tokens;
      while (tokens.size() < num_right && taken.size() < output.size()) {
        tokens.push_back(output[taken.size()]);
        taken.push_back(tokens.back());
      }
      for (TokenId token = 1; token < kVocabSize; ++token) {
        if (ThirdState::Allows(taken, token)) continue;
        tokens.push_back(token);
        break;
      }
      Send(id, Chain(id, tokens));
    }
  }
};

TEST_F(SessionConstraintTest, IsPartOfTheTargetsDistribution) {
  Make();
  size_t ended = 0;
  for (const float temperature : {0.0f, 0.8f}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const SessionId id = seed + (temperature > 0.0f ? 10 : 0);
      const Ask ask = Constrained(temperature, seed);
      ASSERT_TRUE(Submit(id, ask).ok());
      RunToTheEnd();
      EXPECT_EQ(records_[id].tokens, ConstrainedReference(ask));
      EXPECT_NE(records_[id].tokens, Reference(ask).tokens) << "the constraint made no difference";
      ended += records_[id].summary.end.reason == OutputEnd::Reason::kStopToken ? 1 : 0;
    }
  }
  EXPECT_GT(ended, 0u);
}

TEST_F(SessionConstraintTest, DraftsChangeNothing) {
  for (const char* policy : {"fixed", "goodput"}) {
    overlaps_ = !overlaps_;  // With a device of its own masks are made ahead.
    for (const float temperature : {0.0f, 0.8f}) {
      records_.clear();
      Make({.limits = {.max_depth = 6, .nodes_per_level = 1}, .window_policy = policy});
      scheduler_->OnLinkUp(kLink);
      Ask ask = Constrained(temperature);
      ask.drafted = true;
      for (SessionId id = 1; id <= 3; ++id) ASSERT_TRUE(Submit(id, ask).ok());
      RunToTheEnd([&] {
        AnswerOpens();
        DraftForbidden(ask, 3);
      });
      for (SessionId id = 1; id <= 3; ++id) {
        EXPECT_EQ(records_[id].tokens, ConstrainedReference(ask)) << policy << temperature;
        EXPECT_GT(records_[id].summary.masked_draft_tokens, 0u);
      }
    }
  }
}

TEST_F(SessionConstraintTest, WhatIsForbiddenTakesNoRow) {
  Make(FixedWindow(4));
  scheduler_->OnLinkUp(kLink);
  Ask ask = Constrained(0.0f);
  ask.drafted = true;
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    DraftForbidden(ask, 3);
  });
  const SessionSummary& summary = records_[1].summary;
  EXPECT_EQ(summary.draft_tokens, summary.accepted_tokens);
  EXPECT_GT(summary.accepted_tokens, 0u);
}

TEST_F(SessionConstraintTest, WhatIsForcedIsDraftedWithoutADrafter) {
  Make(FixedWindow(4));
  const Ask ask = Constrained(0.8f);
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd();
  EXPECT_EQ(records_[1].tokens, ConstrainedReference(ask));
  const SessionSummary& summary = records_[1].summary;
  EXPECT_GT(summary.accepted_tokens, 0u);
  EXPECT_EQ(summary.accepted_tokens, summary.draft_tokens) << "what is forced is always right";
  ASSERT_EQ(summary.by_origin.size(), 1u);
  EXPECT_EQ(summary.by_origin[0].origin, DraftOrigin::kGrammar);
}

TEST_F(SessionConstraintTest, RulesThatDrawDraftsKeepToIt) {
  for (const VerificationRuleKind rule : {VerificationRuleKind::kRejection, VerificationRuleKind::kBlock}) {
    records_.clear();
    Scheduler::Options options = FixedWindow(4);
    options.verification_rule = rule;
    Make(options);
    scheduler_->OnLinkUp(kLink);
    for (SessionId id = 1; id <= 20; ++id) {
      Ask ask = Constrained(0.9f, id);
      ask.drafted = true;
      ask.trusted = true;
      ASSERT_TRUE(Submit(id, ask).ok());
    }
    RunToTheEnd([&] {
      AnswerOpens();
      for (auto& [id, state] : drafts_) {
        if (!std::exchange(state.wants_growth, false) || state.budget.depth == 0) continue;
        // Tokens 1, 2, 3 and so on, alike likely; most are forbidden.
        DraftDistribution all{.parent = 0};
        for (TokenId token = 1; token <= 8; ++token) {
          all.tokens.push_back(token);
          all.probabilities.push_back(1.0f / 8.0f);
        }
        Grow grow = Chain(id, {static_cast<TokenId>(1 + state.commit_no % 8)});
        grow.distributions = {all};
        Send(id, grow);
      }
    });
    uint32_t accepted = 0;
    for (SessionId id = 1; id <= 20; ++id) {
      TokenIds taken;
      for (const TokenId token : records_[id].tokens) {
        ASSERT_TRUE(ThirdState::Allows(taken, token)) << taken.size();
        taken.push_back(token);
      }
      accepted += records_[id].summary.drafter_accepted_tokens;
    }
    EXPECT_GT(accepted, 0u);
  }
}

TEST_F(SessionConstraintTest, AnEngineThatChoosesIsAskedForLogits) {
  Make({}, {.chooses = true});
  const Ask ask = Constrained(0.8f);
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd();
  EXPECT_EQ(records_[1].tokens, ConstrainedReference(ask));
  EXPECT_EQ(model_->num_choices(), 0u);
}

TEST_F(SessionConstraintTest, EndsWithAnErrorWhereNothingCanGoOn) {
  Make();
  Ask ask = Constrained(0.0f);
  ask.constraint = [] { return std::make_unique<ThirdState>(/*dead_end=*/6); };
  ASSERT_TRUE(Submit(1, ask).ok());
  ask.constraint = [] { return std::make_unique<ThirdState>(/*dead_end=*/0); };
  ASSERT_TRUE(Submit(2, ask).ok());
  RunToTheEnd();
  for (const SessionId id : {1, 2}) {
    ASSERT_EQ(records_[id].ends.size(), 1u);
    EXPECT_TRUE(absl::IsFailedPrecondition(records_[id].ends[0])) << records_[id].ends[0];
  }
  EXPECT_EQ(records_[1].tokens.size(), 6u);
  EXPECT_THAT(std::string(records_[1].ends[0].message()), HasSubstr("after 6 tokens"));
  EXPECT_EQ(records_[2].tokens, TokenIds());
}

TEST_F(SessionConstraintTest, GoesOnFromWhatWasEmitted) {
  const auto replay = [](const TokenIds& tokens) {
    SessionConstraint constraint(std::make_unique<ThirdState>(), TestTokenizer(), kVocabSize);
    return constraint.Replay(tokens);
  };
  TokenIds taken;
  for (int i = 0; i < 9; ++i) {
    for (TokenId token = 1; token < kVocabSize; ++token) {
      if (!ThirdState::Allows(taken, token)) continue;
      taken.push_back(token);
      break;
    }
  }
  EXPECT_TRUE(replay(taken).ok());
  taken[7] = taken[7] % (kVocabSize - 1) + 1;  // The only one that may come there is another.
  const absl::Status refused = replay(taken);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("emitted.ids[7]"));
}

TEST_F(SessionConstraintTest, DropsWholeBranches) {
  SessionConstraint constraint(std::make_unique<ThirdState>(), TestTokenizer(), kVocabSize);
  // Children of the root: which are allowed is known from the rule.
  std::vector<TreeNode> nodes;
  for (TokenId token = 1; token <= 6; ++token) {
    nodes.push_back(
        {.id = static_cast<NodeId>(token), .parent = 0, .token = token, .depth = 1, .score = 0.5f});
  }
  for (TokenId token = 1; token <= 6; ++token) {
    nodes.push_back({.id = static_cast<NodeId>(6 + token),
                     .parent = static_cast<NodeId>(token),
                     .token = 7,
                     .depth = 2,
                     .score = 0.5f});
  }
  std::vector<NodeId> expected;
  for (const TreeNode& node : nodes) {
    const bool allowed = node.depth == 1
                             ? ThirdState::Allows({}, node.token)
                             : ThirdState::Allows({}, static_cast<TokenId>(node.parent)) &&
                                   ThirdState::Allows({static_cast<TokenId>(node.parent)}, node.token);
    if (allowed) expected.push_back(node.id);
  }
  const auto total = static_cast<uint32_t>(nodes.size());
  EXPECT_EQ(constraint.DropForbidden(&nodes), total - expected.size());
  std::vector<NodeId> kept;
  for (const TreeNode& node : nodes) kept.push_back(node.id);
  EXPECT_EQ(kept, expected);
  EXPECT_FALSE(kept.empty());
}

}  // namespace
}  // namespace tandem
