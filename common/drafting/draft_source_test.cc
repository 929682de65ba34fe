#include "common/drafting/draft_source.h"
#include "common/base/node_index.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "common/drafting/source_host.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TokenIds Tokens(const std::vector<ProposedNode>& nodes) {
  TokenIds tokens;
  for (const ProposedNode& node : nodes) tokens.push_back(node.token);
  return tokens;
}

// What DraftSource::Propose promises.
void CheckProposal(const std::vector<ProposedNode>& nodes, const ProposalLimits& limits) {
  ASSERT_LE(nodes.size(), limits.nodes);
  std::vector<uint32_t> depths;
  std::vector<float> path_scores;
  std::map<uint32_t, std::set<TokenId>> children;
  std::map<uint32_t, float> sums;
  for (size_t i = 0; i < nodes.size(); ++i) {
    ASSERT_LE(PlaceAfterRoot(nodes[i].parent), i);
    ASSERT_GT(nodes[i].score, 0.0f);
    ASSERT_LE(sums[nodes[i].parent] += nodes[i].score, 1.0f + 1e-5f);
    ASSERT_TRUE(children[nodes[i].parent].insert(nodes[i].token).second);
    ASSERT_LE(children[nodes[i].parent].size(), limits.branching);
    const bool top = nodes[i].parent == kRootNode;
    const size_t above = top ? 0 : nodes[i].parent;
    depths.push_back(top ? 1 : depths[above] + 1);
    path_scores.push_back((top ? 1.0f : path_scores[above]) * nodes[i].score);
    ASSERT_LE(depths.back(), limits.depth);
    if (i > 0) {
      ASSERT_LE(path_scores[i], path_scores[i - 1]);
    }
  }
}

class EverySourceTest : public ::testing::TestWithParam<const char*> {
 protected:
  SourceHost host_{ParseSourceSpec(GetParam()).value()};
};

TEST_P(EverySourceTest, ProposalsKeepTheirPromisesWhateverTheText) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const uint32_t num_tokens = 1 + static_cast<uint32_t>(random() % 12);
    const auto draw = [&] {
      TokenIds tokens(random() % 8);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random() % num_tokens);
      return tokens;
    };
    const std::unique_ptr<DraftSource> source = host_.NewSession(seed % 2, 0);
    TokenIds all = draw();
    source->Start(all, static_cast<uint32_t>(all.size() / 2));
    for (int round = 0; round < 60; ++round) {
      const ProposalLimits limits{.depth = static_cast<uint32_t>(random() % 8),
                                  .nodes = static_cast<uint32_t>(random() % 40),
                                  .branching = static_cast<uint32_t>(random() % 5)};
      CheckProposal(source->Propose(limits), limits);
      ASSERT_FALSE(HasFatalFailure());
      const TokenIds tokens = draw();
      all.insert(all.end(), tokens.begin(), tokens.end());
      if (random() % 10 == 0) {
        source->Start(all, 0);
      } else {
        source->Observe(tokens);
      }
    }
  }
}

TEST_P(EverySourceTest, FindsWhatWasSaidBeforeAndGrowsSurer) {
  const std::unique_ptr<DraftSource> source = host_.NewSession(0, 0);
  source->Start(TokenIds{50}, 1);
  EXPECT_THAT(source->Propose({.depth = 4, .nodes = 4, .branching = 1}), IsEmpty());
  float first = 0.0f;
  for (int round = 0; round < 10; ++round) {
    source->Observe(TokenIds{10, 11, 12, 13, 14, 15, 16, 17});
    source->Observe(TokenIds{100 + round, 10, 11, 12});
    const std::vector<ProposedNode> nodes = source->Propose({.depth = 4, .nodes = 4, .branching = 1});
    EXPECT_EQ(Tokens(nodes), (TokenIds{13, 14, 15, 16}));
    ASSERT_FALSE(nodes.empty());
    if (round == 0) first = nodes[0].score;
    if (round == 9) {
      // A source that looks only at short contexts is nearly sure from the first round on.
      EXPECT_GT(nodes[0].score, std::min(0.95f, 1.5f * first));
    }
    source->Observe(TokenIds{13, 14, 15, 16, 17, 200 + round});
  }
}

TEST_P(EverySourceTest, ScoresFallWhenTheTextNeverRepeatsItself) {
  const std::unique_ptr<DraftSource> source = host_.NewSession(0, 0);
  source->Start(TokenIds{1}, 1);
  float first = 0.0f;
  float last = 0.0f;
  // The same two tokens, and never the same third one.
  for (TokenId i = 0; i < 60; ++i) {
    source->Observe(TokenIds{7, 8});
    const auto nodes = source->Propose({.depth = 1, .nodes = 1, .branching = 1});
    if (!nodes.empty()) {
      if (first == 0.0f) first = nodes[0].score;
      last = nodes[0].score;
    }
    source->Observe(TokenIds{1000 + i});
  }
  EXPECT_GT(first, 0.0f);
  EXPECT_LT(last, first / 4);
}

TEST_P(EverySourceTest, ASecondStartThatGoesOnCountsTheRestOnly) {
  std::mt19937 random(3);
  TokenIds text;
  for (int i = 0; i < 200; ++i) text.push_back(static_cast<TokenId>(random() % 6));
  SourceHost other_host(ParseSourceSpec(GetParam()).value());
  const std::unique_ptr<DraftSource> once = host_.NewSession(0, 0);
  const std::unique_ptr<DraftSource> twice = other_host.NewSession(0, 0);
  once->Start(text, 50);
  twice->Start(absl::MakeConstSpan(text).first(120), 50);
  twice->Start(text, 50);
  const ProposalLimits limits{.depth = 6, .nodes = 30, .branching = 4};
  EXPECT_EQ(once->Propose(limits), twice->Propose(limits));
  EXPECT_FALSE(once->Propose(limits).empty());
}

TEST_P(EverySourceTest, APromptInPartsIsThePromptAtOnce) {
  std::mt19937 random(3);
  TokenIds text;
  for (int i = 0; i < 200; ++i) text.push_back(static_cast<TokenId>(random() % 6));
  SourceHost other_host(ParseSourceSpec(GetParam()).value());
  const std::unique_ptr<DraftSource> once = host_.NewSession(0, 0);
  const std::unique_ptr<DraftSource> parts = other_host.NewSession(0, 0);
  once->Start(text, 150);
  for (size_t i = 0; i < 150; i += 50) parts->Read(absl::MakeConstSpan(text).subspan(i, 50));
  parts->Observe(absl::MakeConstSpan(text).subspan(150));
  const ProposalLimits limits{.depth = 6, .nodes = 30, .branching = 4};
  EXPECT_EQ(once->Propose(limits), parts->Propose(limits));
  EXPECT_FALSE(parts->Propose(limits).empty());
}

INSTANTIATE_TEST_SUITE_P(Kinds, EverySourceTest,
                         ::testing::Values("ngram:min=1,max=4", "ngram", "suffix:min=1",
                                           "suffix:min=2,tokens=64", "trie",
                                           "trie:nodes=2000,context=3,branch=8"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(SourceHostTest, TriesLearnAcrossSessionsOfATenantAndNotBeyond) {
  SourceHost host(ParseSourceSpec("trie").value());
  const ProposalLimits limits{.depth = 4, .nodes = 4, .branching = 1};
  const std::unique_ptr<DraftSource> teacher = host.NewSession(1, 0);
  teacher->Start(TokenIds{1, 5, 6, 7, 8, 9}, 1);
  const std::unique_ptr<DraftSource> same = host.NewSession(1, 0);
  same->Start(TokenIds{2, 5, 6}, 3);
  EXPECT_EQ(Tokens(same->Propose(limits)), (TokenIds{7, 8, 9}));
  const std::unique_ptr<DraftSource> other = host.NewSession(2, 0);
  other->Start(TokenIds{2, 5, 6}, 3);
  EXPECT_THAT(other->Propose(limits), IsEmpty());
}

TEST(SourceSpecTest, ReadsSettingsAndNamesWhatIsWrong) {
  const absl::StatusOr<SourceSpec> ngram = ParseSourceSpec("ngram:min=3,max=7");
  ASSERT_TRUE(ngram.ok());
  EXPECT_EQ(ngram->ngram.min_n, 3u);
  EXPECT_EQ(ngram->ngram.max_n, 7u);
  const std::pair<const char*, const char*> wrong[] = {{"gram", "expected ngram, suffix or trie"},
                                                       {"ngram:", "expected KEY=NUMBER"},
                                                       {"ngram:least=2", "min, max, tokens"},
                                                       {"ngram:min=6", "expected at most max, 5"},
                                                       {"ngram:max=17", "[1, 16]"},
                                                       {"suffix:min=-1", "[1, 1024]"},
                                                       {"suffix:max=4", "min, tokens"},
                                                       {"trie:branch=4", "expected less than branch"},
                                                       {"trie:nodes", "expected a number"}};
  for (const auto& [text, message] : wrong) {
    const absl::Status status = ParseSourceSpec(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  EXPECT_TRUE(NamesSource("suffix:min=3"));
  EXPECT_FALSE(NamesSource("./suffix"));
  EXPECT_FALSE(NamesSource("suffixes"));
}

TEST(MergeProposalsTest, FoldsDuplicatesAndKeepsTheBest) {
  const std::vector<ProposedNode> a = {{kRootNode, 1, 0.5f}, {0, 2, 0.8f}, {kRootNode, 3, 0.3f}};
  const std::vector<ProposedNode> b = {
      {kRootNode, 3, 0.5f}, {0, 4, 0.9f}, {kRootNode, 1, 0.2f}, {2, 2, 0.5f}};
  const std::vector<ProposedNode> proposals[] = {a, b};
  const std::vector<ProposedNode> merged =
      MergeProposals(proposals, {.depth = 9, .nodes = 9, .branching = 9});
  ASSERT_EQ(merged.size(), 4u);
  EXPECT_EQ(Tokens(merged), (TokenIds{3, 1, 4, 2}));
  EXPECT_FLOAT_EQ(merged[0].score, 0.65f);
  EXPECT_FLOAT_EQ(merged[1].score, 0.6f);
  EXPECT_FLOAT_EQ(merged[2].score, 0.9f);
  EXPECT_EQ(merged[2].parent, 0u);
  EXPECT_FLOAT_EQ(merged[3].score, 0.9f);
  EXPECT_EQ(merged[3].parent, 1u);
  EXPECT_EQ(Tokens(MergeProposals(proposals, {.depth = 9, .nodes = 2, .branching = 9})), (TokenIds{3, 1}));
  EXPECT_EQ(Tokens(MergeProposals(proposals, {.depth = 9, .nodes = 9, .branching = 1})), (TokenIds{3, 4}));
}

}  // namespace
}  // namespace tandem
