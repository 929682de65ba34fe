// Draft heads under a constraint: what they guess is what their distributions say of what may come.

#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/testing/fake_constraint.h"
#include "drafter/testing/head_drafting_test_fixture.h"

namespace tandem {
namespace {

const FakeConstraint::Options kAllowed = {.vocab_size = 61};

template <HeadConfig::Kind kind>
class ConstrainedHead : public HeadDraftingTest {
 protected:
  ConstrainedHead() : HeadDraftingTest(64, 32 << 20, kind) {}

  void OpenConstrained(size_t length, bool at_once) {
    text_ = Text(length);
    prompt_length_ = length;
    OpenSession open = MakeOpen();
    open.prompt_length = static_cast<uint32_t>(length);
    open.constraint = std::make_shared<const std::string>("fake");
    Send(open);
    ++epoch_;
    tree_.Clear();
    Read();
    if (at_once) Constrain();
    SendFeatures(opened_->features->first_position, Last());
    RunDry();
  }

  void Constrain() {
    core_.OnConstraint(kVerifierLink, kSession, epoch_, std::make_unique<FakeConstraint>(kAllowed));
  }

  TokenIds OutputWith(const TokenIds& path) const {
    TokenIds output(text_.begin() + static_cast<ptrdiff_t>(prompt_length_), text_.end());
    output.insert(output.end(), path.begin(), path.end());
    return output;
  }

  size_t NumForbidden() const {
    size_t forbidden = 0;
    for (const TreeNode& node : tree_.nodes()) {
      TokenIds path;
      for (const NodeId id : tree_.Path(node.parent)) path.push_back(tree_.Find(id)->token);
      forbidden += FakeConstraint::Allows(kAllowed, OutputWith(path), node.token) ? 0 : 1;
    }
    return forbidden;
  }

  // One token that may come, and the best one of the tree if there is one.
  TokenIds NextTokens() const {
    TokenIds tokens = BestPath(1);
    const TokenIds output = OutputWith(tokens);
    for (TokenId token = 1; token < kAllowed.vocab_size; ++token) {
      if (!FakeConstraint::Allows(kAllowed, output, token)) continue;
      tokens.push_back(token);
      return tokens;
    }
    return tokens;
  }

  void DraftRounds(int rounds) {
    size_t num_nodes = 0;
    for (int round = 0; round < rounds; ++round) {
      EXPECT_EQ(NumForbidden(), 0u) << round;
      num_nodes += tree_.size();
      SendCommit(NextTokens(), /*with_features=*/true);
      RunDry();
    }
    EXPECT_GT(num_nodes, static_cast<size_t>(rounds));
    EXPECT_TRUE(refused_.ok()) << refused_;
    EXPECT_TRUE(resyncs_.empty());
  }

  size_t prompt_length_ = 0;
};

using ConstrainedEagleTest = ConstrainedHead<HeadConfig::Kind::kEagle3>;
using ConstrainedMedusaTest = ConstrainedHead<HeadConfig::Kind::kMedusa>;

TEST_F(ConstrainedEagleTest, DraftsWhatMayCome) {
  OpenConstrained(20, /*at_once=*/true);
  DraftRounds(8);
}

TEST_F(ConstrainedMedusaTest, DraftsWhatMayComeAtTheScoresOfWhatIsLeft) {
  OpenConstrained(20, /*at_once=*/true);
  int checked = 0;
  for (const TreeNode& node : tree_.nodes()) {
    TokenIds path;
    for (const NodeId id : tree_.Path(node.parent)) path.push_back(tree_.Find(id)->token);
    std::vector<float> logits = plain_.LevelLogits(text_, path.size());
    FakeConstraint::Mask(kAllowed, path, absl::MakeSpan(logits));
    const TargetSampler sampler(sampling_, kAllowed.vocab_size, {});
    const TokenProbabilities guesses = sampler.Guess(
        absl::MakeSpan(logits), static_cast<uint32_t>(text_.size() + path.size()), budget_.branching);
    const auto same = absl::c_find_if(guesses, [&](const auto& guess) { return guess.token == node.token; });
    ASSERT_NE(same, guesses.end());
    EXPECT_EQ(same->probability, node.score);
    ++checked;
  }
  EXPECT_GT(checked, 4);
  DraftRounds(8);
}

TEST_F(ConstrainedMedusaTest, AConstraintThatComesLaterIsHeededFromTheNextCommitOn) {
  OpenConstrained(20, /*at_once=*/false);
  EXPECT_GT(NumForbidden(), 0u);
  Constrain();
  // Off the tree, so that nothing stays of what was drafted freely.
  for (TokenId token = 60; token > 0; --token) {
    if (tree_.FindChild(0, token) != nullptr || !FakeConstraint::Allows(kAllowed, {}, token)) continue;
    SendCommit({token}, /*with_features=*/true);
    break;
  }
  RunDry();
  DraftRounds(6);
}

}  // namespace
}  // namespace tandem
