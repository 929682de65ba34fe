// Requests with a constraint: their outputs are functions of model, prompt, parameters, seed and constraint
// alone, and what a drafter guesses against the constraint costs no row.

#include "verifier/session/session_constraint.h"
#include "common/base/node_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/testing/fake_constraint.h"
#include "gmock/gmock.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kEnd = FakeConstraint::kEnd;

FakeConstraint::Options OfTheTarget(size_t dead_end = SIZE_MAX) {
  return {.vocab_size = kVocabSize, .tokenizer = TestTokenizer(), .dead_end = dead_end};
}

bool Allows(const TokenIds& taken, TokenId token) {
  return FakeConstraint::Allows(OfTheTarget(), taken, token);
}

class SessionConstraintTest : public SchedulerTest {
 protected:
  static Ask Constrained(float temperature, uint64_t seed = 3) {
    Ask ask;
    ask.sampling = {.temperature = temperature, .seed = seed};
    ask.rules = {.stop_tokens = {kEnd}, .max_tokens = 24};
    ask.constraint = [] { return std::make_unique<FakeConstraint>(OfTheTarget()); };
    return ask;
  }

  // One token after the other, each from what is allowed.
  TokenIds ConstrainedReference(const Ask& ask) const {
    TokenIds all = ask.prompt;
    TokenIds output;
    TargetSampler sampler(ask.sampling, kVocabSize, ask.prompt);
    while (output.size() < ask.rules.max_tokens && (output.empty() || output.back() != kEnd)) {
      std::vector<float> logits = model_->ReferenceLogits(all);
      FakeConstraint::Mask(OfTheTarget(), output, absl::MakeSpan(logits));
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
        if (Allows(taken, token)) continue;
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

// One text and no other, in any tokens.
class OneText final : public ConstraintState {
 public:
  explicit OneText(std::string text, uint64_t mask_steps = 0)
      : text_(std::move(text)), mask_steps_(mask_steps) {}
  bool Accept(TokenId token) override {
    const absl::string_view bytes = TestTokenizer()->TokenBytes(token);
    if (bytes.empty() || !absl::StartsWith(absl::string_view(text_).substr(at_), bytes)) return false;
    at_ += bytes.size();
    taken_.push_back(bytes.size());
    return true;
  }
  void Rollback(uint32_t count) override {
    for (; count > 0; --count, taken_.pop_back()) at_ -= taken_.back();
  }
  void FillMask(absl::Span<uint32_t> mask) override {
    steps_ += mask_steps_;
    std::fill(mask.begin(), mask.end(), ~0u);
  }
  std::string ForcedBytes() override { return text_.substr(at_); }
  uint64_t steps() const override { return steps_; }

 private:
  const std::string text_;
  const uint64_t mask_steps_;
  uint64_t steps_ = 0;
  size_t at_ = 0;
  std::vector<size_t> taken_;
};

TokenIds ChainOf(const std::vector<ProposedNode>& nodes) {
  TokenIds chain;
  uint32_t last = kRootNode;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent != last) continue;
    chain.push_back(nodes[i].token);
    last = i;
  }
  return chain;
}

TEST(ForcedTest, IsSpelledAsTheTargetDidBefore) {
  const std::string text = "\"favourite_colour\":";
  const TokenIds usual =
      *TestTokenizer()->Encode(text, {.parse_special = false, .add_special_tokens = false, .max_tokens = 64});
  // The target goes byte by byte.
  TokenIds own;
  for (const char byte : text) own.push_back(*TestTokenizer()->FindToken(std::string(1, byte)));
  ASSERT_NE(own, usual);
  const ProposalLimits limits{.depth = 32, .nodes = 64, .branching = 4};
  ForcedSpellings spellings;
  const auto begin = [&](uint64_t salt) {
    auto constraint =
        std::make_unique<SessionConstraint>(std::make_unique<OneText>(text), TestTokenizer(), kVocabSize);
    constraint->SpellBy(&spellings, salt);
    return constraint;
  };
  const std::unique_ptr<SessionConstraint> first = begin(1);
  EXPECT_EQ(ChainOf(first->Forced(limits)), usual);
  // What was taken down once goes on by itself, whatever the target makes of it.
  for (const TokenId token : own) ASSERT_TRUE(first->Commit(token));
  const std::unique_ptr<SessionConstraint> second = begin(1);
  const std::vector<ProposedNode> nodes = second->Forced(limits);
  EXPECT_EQ(ChainOf(nodes), own);
  for (const ProposedNode& node : nodes) EXPECT_LT(node.score, 1.0f);
  // In the middle of it as well.
  ASSERT_TRUE(second->Commit(own[0]));
  ASSERT_TRUE(second->Commit(own[1]));
  EXPECT_EQ(ChainOf(second->Forced(limits)), TokenIds(own.begin() + 2, own.end()));
  EXPECT_EQ(second->Forced({.depth = 3, .nodes = 2, .branching = 1}).size(), 2u);
  EXPECT_EQ(ChainOf(begin(2)->Forced(limits)), usual) << "another salt's";
}

TEST(MasksTest, DearOnesLeaveRoomForFewRows) {
  SessionConstraint constraint(std::make_unique<OneText>("text", /*mask_steps=*/50'000), TestTokenizer(),
                               kVocabSize);
  EXPECT_GT(constraint.most_masks(), 1000u) << "nothing is known yet";
  std::vector<float> logits(kVocabSize);
  constraint.BeginWalk({});
  constraint.Mask(kRootNode, absl::MakeSpan(logits));
  constraint.EndWalk();
  EXPECT_EQ(constraint.most_masks(), 4u);
}

TEST(ForcedTest, ATreeHoldsTheWaysOfSpelling) {
  const std::string text = "ab";
  const TokenId a = *TestTokenizer()->FindToken("a");
  const TokenId b = *TestTokenizer()->FindToken("b");
  const TokenId ab = *TestTokenizer()->FindToken("ab");
  ForcedSpellings spellings;
  for (const TokenIds& way : {TokenIds{a, b}, TokenIds{a, b}, TokenIds{ab}}) {
    SessionConstraint constraint(std::make_unique<OneText>(text), TestTokenizer(), kVocabSize);
    constraint.SpellBy(&spellings, 0);
    constraint.Forced({.depth = 4, .nodes = 4, .branching = 4});
    for (const TokenId token : way) ASSERT_TRUE(constraint.Commit(token));
  }
  SessionConstraint constraint(std::make_unique<OneText>(text), TestTokenizer(), kVocabSize);
  constraint.SpellBy(&spellings, 0);
  const std::vector<ProposedNode> nodes = constraint.Forced({.depth = 4, .nodes = 4, .branching = 4});
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].token, a);
  EXPECT_EQ(nodes[1].token, b);
  EXPECT_EQ(nodes[1].parent, 0u);
  EXPECT_EQ(nodes[2].token, ab);
  EXPECT_EQ(nodes[2].parent, kRootNode);
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
        ASSERT_TRUE(Allows(taken, token)) << taken.size();
        taken.push_back(token);
      }
      accepted += records_[id].summary.drafter_accepted_tokens;
    }
    EXPECT_GT(accepted, 0u);
  }
}

TEST_F(SessionConstraintTest, AnEngineThatChoosesIsToldWhatIsAllowed) {
  for (const float temperature : {0.0f, 0.8f}) {
    for (const bool drafted : {false, true}) {
      records_.clear();
      drafts_.clear();
      Make(FixedWindow(4), {.chooses = true});
      scheduler_->OnLinkUp(kLink);
      Ask ask = Constrained(temperature);
      ask.drafted = drafted;
      ASSERT_TRUE(Submit(1, ask).ok());
      RunToTheEnd([&] {
        AnswerOpens();
        DraftForbidden(ask, 3);
      });
      EXPECT_EQ(records_[1].tokens, ConstrainedReference(ask)) << temperature << drafted;
      EXPECT_EQ(model_->num_logits(), 0u);
      EXPECT_GT(model_->num_choices(), 0u);
    }
  }
}

class DeadEndTest : public SessionConstraintTest, public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(All, DeadEndTest, ::testing::Bool());

TEST_P(DeadEndTest, EndsWithAnErrorWhereNothingCanGoOn) {
  const bool chooses = GetParam();
  Make({}, {.chooses = chooses});
  Ask ask = Constrained(0.0f);
  ask.constraint = [] { return std::make_unique<FakeConstraint>(OfTheTarget(/*dead_end=*/6)); };
  ASSERT_TRUE(Submit(1, ask).ok());
  ask.constraint = [] { return std::make_unique<FakeConstraint>(OfTheTarget(/*dead_end=*/0)); };
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
    SessionConstraint constraint(std::make_unique<FakeConstraint>(OfTheTarget()), TestTokenizer(),
                                 kVocabSize);
    return constraint.Replay(tokens);
  };
  TokenIds taken;
  for (int i = 0; i < 9; ++i) {
    for (TokenId token = 1; token < kVocabSize; ++token) {
      if (!Allows(taken, token)) continue;
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

// A second later whenever it is looked at.
class TickingClock final : public Clock {
 public:
  absl::Time Now() const override { return now_ += absl::Seconds(1); }

 private:
  mutable absl::Time now_ = absl::UnixEpoch();
};

TEST_F(SessionConstraintTest, TellsWhatItsMasksTook) {
  const TickingClock clock;
  SessionConstraint constraint(std::make_unique<FakeConstraint>(OfTheTarget()), TestTokenizer(), kVocabSize);
  constraint.TimeBy(&clock);
  TokenId child = 1;
  while (!Allows({}, child)) ++child;
  const RoundNode nodes[] = {{.token = child, .score = 0.5f}};
  const auto logits_after = [&](uint32_t node) {
    std::vector<float> logits(kVocabSize, 1.0f);
    constraint.Mask(node, absl::MakeSpan(logits));
    return logits;
  };
  // As the walk comes by: the root's and the child's.
  constraint.BeginWalk(nodes);
  const std::vector<float> root = logits_after(kRootNode);
  const std::vector<float> below = logits_after(0);
  constraint.EndWalk();
  const MaskWork walked = constraint.TakeMaskWork();
  EXPECT_EQ(walked.masks, 2u);
  EXPECT_GE(walked.time, absl::Seconds(2));
  EXPECT_GE(walked.end - walked.start, absl::Seconds(2));
  EXPECT_EQ(constraint.TakeMaskWork().masks, 0u);
  // Ahead: what is applied later is not made again.
  constraint.MaskAhead(nodes);
  constraint.BeginWalk(nodes);
  EXPECT_EQ(logits_after(kRootNode), root);
  EXPECT_EQ(logits_after(0), below);
  constraint.EndWalk();
  const MaskWork ahead = constraint.TakeMaskWork();
  EXPECT_EQ(ahead.masks, 2u);
  EXPECT_GT(ahead.start, walked.end);
  EXPECT_GT(ahead.time, ahead.end - ahead.start) << "applied as well";
}

// May end at once, or go on with token 1 or 2.
class EndOrGoOn final : public ConstraintState {
 public:
  bool Accept(TokenId token) override { return token == kEnd || token == 1 || token == 2; }
  void Rollback(uint32_t) override {}
  void FillMask(absl::Span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (const TokenId token : {kEnd, TokenId{1}, TokenId{2}})
      mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }
  std::string ForcedBytes() override { return {}; }
};

TEST_F(SessionConstraintTest, TheEndMayStandForWhatTheTargetWouldRatherSay) {
  const auto masked = [](bool moves) {
    SessionConstraint constraint(std::make_unique<EndOrGoOn>(), TestTokenizer(), kVocabSize);
    if (moves) constraint.EndWhereOthersWould(kEnd);
    EXPECT_EQ(constraint.moves_probabilities(), moves);
    std::vector<float> logits(kVocabSize);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7) / 3.0f;
    constraint.BeginWalk({});
    constraint.Mask(kRootNode, absl::MakeSpan(logits));
    const std::vector<float> once = logits;
    constraint.Mask(kRootNode, absl::MakeSpan(logits));
    EXPECT_EQ(logits, once);
    constraint.EndWalk();
    return logits;
  };
  double others = 0.0;
  for (size_t i = 0; i < kVocabSize; ++i) {
    if (i != 1 && i != 2) others += std::exp(static_cast<double>(static_cast<float>(i % 7) / 3.0f));
  }
  const std::vector<float> moved = masked(true);
  std::vector<float> expected = masked(false);
  EXPECT_EQ(expected[3], -std::numeric_limits<float>::infinity());
  EXPECT_NEAR(moved[kEnd], std::log(others), 1e-5);
  expected[kEnd] = moved[kEnd];
  EXPECT_EQ(moved, expected) << "nothing else changes";
}

TEST_F(SessionConstraintTest, DropsWholeBranches) {
  SessionConstraint constraint(std::make_unique<FakeConstraint>(OfTheTarget()), TestTokenizer(), kVocabSize);
  // Children of the root: which are allowed is known from the rule.
  RoundTree tree;
  for (TokenId token = 1; token <= 6; ++token) tree.Add({.token = token, .score = 0.5f});
  for (uint32_t parent = 0; parent < 6; ++parent) {
    tree.Add({.parent = parent, .token = 7, .depth = 2, .score = 0.5f});
  }
  std::vector<std::pair<TokenIds, TokenId>> expected, kept;
  const auto with_path = [&](const RoundNode& node) {
    TokenIds above;
    CollectPath(tree.nodes(), node.parent, &above);
    return std::pair(above, node.token);
  };
  for (const RoundNode& node : tree) {
    const auto [above, token] = with_path(node);
    if ((above.empty() || Allows({}, above[0])) && Allows(above, token)) expected.emplace_back(above, token);
  }
  const uint32_t total = tree.size();
  EXPECT_EQ(constraint.DropForbidden(&tree), total - expected.size());
  for (const RoundNode& node : tree) kept.push_back(with_path(node));
  EXPECT_EQ(kept, expected);
  EXPECT_FALSE(kept.empty());
}

TEST_F(SessionConstraintTest, ExpensiveMasksHaveSmallTrees) {
  FakeConstraint::Options options = OfTheTarget();
  options.mask_steps = 150'000;
  SessionConstraint constraint(std::make_unique<FakeConstraint>(options), TestTokenizer(), kVocabSize);
  RoundTree tree;
  for (TokenId token = 1; token < kVocabSize; ++token) tree.Add({.token = token, .score = 0.5f});
  // What they cost is not known yet.
  constraint.DropForbidden(&tree);
  ASSERT_GT(tree.size(), 5u);
  const size_t rows = constraint.MaskAhead(tree.nodes());
  EXPECT_LT(rows, 4u);
  EXPECT_EQ(constraint.masks_ahead().size(), rows);
  // The others are made where the walk comes to them.
  constraint.BeginWalk(tree.nodes());
  for (const uint32_t node : {0u, 4u}) {
    std::vector<float> logits(kVocabSize, 1.0f), expected(kVocabSize, 1.0f);
    constraint.Mask(node, absl::MakeSpan(logits));
    FakeConstraint::Mask(options, TokenIds{tree[node].token}, absl::MakeSpan(expected));
    EXPECT_EQ(logits, expected) << node;
  }
  constraint.EndWalk();
  EXPECT_GE(constraint.round_steps(), 3 * options.mask_steps);
  constraint.DropForbidden(&tree);
  EXPECT_LE(tree.size(), 2u);
}

TEST_F(SessionConstraintTest, ExpensiveConstraintsTakeTurns) {
  for (const bool overlaps : {false, true}) {
    overlaps_ = overlaps;
    records_.clear();
    Make();
    const Ask ask = Constrained(0.8f);
    Ask expensive = ask;
    expensive.constraint = [] {
      FakeConstraint::Options options = OfTheTarget();
      options.mask_steps = 250'000;
      return std::make_unique<FakeConstraint>(options);
    };
    for (SessionId id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id, id == 4 ? ask : expensive).ok());
    for (int step = 0; step < 1000 && records_[4].ends.empty(); ++step) scheduler_->Step();
    // The one that costs nothing sits out no step. Of the others none is left behind.
    const TokenIds reference = ConstrainedReference(ask);
    EXPECT_EQ(records_[4].tokens, reference);
    for (SessionId id = 1; id <= 3; ++id) {
      EXPECT_TRUE(records_[id].ends.empty()) << id;
      EXPECT_GE(records_[id].tokens.size(), reference.size() / 4) << id;
    }
    RunToTheEnd();
    for (SessionId id = 1; id <= 3; ++id) EXPECT_EQ(records_[id].tokens, reference) << id;
  }
}

}  // namespace
}  // namespace tandem
