#include "common/drafting/learned_trie.h"

#include <map>
#include <memory>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

void Learn(TrieIndex& index, const TokenIds& output) {
  for (TokenId token : output) index.Append(token, /*is_output=*/true);
}

TEST(LearnedTrieTest, CountsEverySubstringOfTheOutputsUpToABranch) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const uint32_t branch = 2 + seed % 5;
    auto trie = std::make_shared<LearnedTrie>(100000);
    std::map<TokenIds, uint32_t> counts;  // Of substrings.
    for (int session = 0; session < 3; ++session) {
      TrieIndex index({.max_context = 1, .branch = branch}, trie);
      for (TokenId token : {7, 8, 9}) index.Append(token, /*is_output=*/false);
      TokenIds output;
      for (int i = 0; i < 60; ++i) output.push_back(static_cast<TokenId>(random() % 4));
      Learn(index, output);
      for (size_t begin = 0; begin < output.size(); ++begin) {
        for (size_t length = 1; length <= branch && begin + length <= output.size(); ++length) {
          ++counts[TokenIds(output.begin() + static_cast<ptrdiff_t>(begin),
                            output.begin() + static_cast<ptrdiff_t>(begin + length))];
        }
      }
    }
    EXPECT_EQ(trie->num_nodes(), 1 + counts.size());
    for (const auto& [substring, count] : counts) {
      std::optional<LearnedTrie::NodeIndex> node = LearnedTrie::kRoot;
      for (size_t i = 0; i + 1 < substring.size(); ++i) node = trie->Child(*node, substring[i]);
      EXPECT_THAT(trie->Continuations(*node), ::testing::Contains(Continuation{substring.back(), count}));
    }
  }
}

TEST(LearnedTrieTest, PromptsAreNotLearnedButLookedUp) {
  auto trie = std::make_shared<LearnedTrie>(1000);
  TrieIndex teacher({.max_context = 3, .branch = 8}, trie);
  Learn(teacher, {1, 2, 3, 4, 5});
  const size_t nodes = trie->num_nodes();
  TrieIndex index({.max_context = 3, .branch = 8}, trie);
  for (TokenId token : {9, 2, 3}) index.Append(token, /*is_output=*/false);
  EXPECT_EQ(trie->num_nodes(), nodes);
  const std::vector<TrieIndex::Context> contexts = index.Contexts();
  ASSERT_EQ(contexts.size(), 2u);
  EXPECT_EQ(contexts[0].match_length, 2u);
  EXPECT_EQ(contexts[1].match_length, 1u);
  EXPECT_THAT(index.Continuations(contexts[0]), ElementsAre(Continuation{4, 1}));
  EXPECT_THAT(index.Continuations(*index.After(contexts[0], 4)), ElementsAre(Continuation{5, 1}));
}

TEST(LearnedTrieTest, StaysBoundedKeepsWhatIsFrequentAndForgetsTheRest) {
  auto trie = std::make_shared<LearnedTrie>(200);
  TrieIndex frequent({.max_context = 2, .branch = 4}, trie);
  TrieIndex rare({.max_context = 2, .branch = 4}, trie);
  for (int round = 0; round < 300; ++round) {
    Learn(frequent, {1, 2, 3, 4});
    Learn(rare, {1000 + round});
    ASSERT_LE(trie->num_nodes(), 200u);
  }
  EXPECT_GT(trie->generation(), 0u);
  EXPECT_FALSE(trie->Child(LearnedTrie::kRoot, 1000).has_value());
  TrieIndex index({.max_context = 2, .branch = 4}, trie);
  for (TokenId token : {1, 2}) index.Append(token, /*is_output=*/false);
  ASSERT_FALSE(index.Contexts().empty());
  EXPECT_EQ(index.Continuations(index.Contexts()[0]).at(0).token, 3);
}

TEST(LearnedTrieTest, SmallestTrieHoldsUp) {
  auto trie = std::make_shared<LearnedTrie>(2);
  TrieIndex index({.max_context = 1, .branch = 3}, trie);
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    index.Append(static_cast<TokenId>(random() % 5), /*is_output=*/true);
    ASSERT_LE(trie->num_nodes(), 2u);
  }
}

TEST(LearnedTrieTest, AReplayTeachesNothing) {
  auto trie = std::make_shared<LearnedTrie>(100);
  TrieIndex teacher({}, trie);
  Learn(teacher, {1, 2, 3, 4});
  const size_t num_nodes = trie->num_nodes();
  TrieIndex replay({}, trie, /*teaches=*/false);
  Learn(replay, {5, 6, 2, 3});
  EXPECT_EQ(trie->num_nodes(), num_nodes);
  ASSERT_FALSE(replay.Contexts().empty());
  EXPECT_THAT(replay.Continuations(replay.Contexts()[0]), ElementsAre(Continuation{4, 1}));

  MatchAcceptance prior;
  const float before = prior.Value(2, true);
  MatchAcceptance reader(&prior, /*teaches_prior=*/false);
  reader.Observe(2, true, false);
  EXPECT_EQ(prior.Value(2, true), before);
  EXPECT_LT(reader.Value(2, true), before);
}

TEST(TrieStoreTest, LookingMakesNobodyGo) {
  TrieStore store({.max_nodes = 100, .max_tenants = 1});
  const std::shared_ptr<LearnedTrie> one = store.ForTenant(1, 0);
  EXPECT_EQ(store.Peek(1, 0), one);
  EXPECT_EQ(store.Peek(2, 0)->num_nodes(), 1u);
  EXPECT_EQ(store.num_tenants(), 1u);
  EXPECT_EQ(store.ForTenant(1, 0), one);
}

TEST(TrieStoreTest, SeparatesTenantsAndDropsTheOneUsedLongestAgo) {
  TrieStore store({.max_nodes = 100, .max_tenants = 2});
  const std::shared_ptr<LearnedTrie> one = store.ForTenant(1, 0);
  const std::shared_ptr<LearnedTrie> two = store.ForTenant(2, 0);
  EXPECT_NE(one, two);
  EXPECT_EQ(store.ForTenant(1, 0), one);
  store.ForTenant(3, 0);
  EXPECT_EQ(store.num_tenants(), 2u);
  EXPECT_EQ(store.ForTenant(1, 0), one);
  EXPECT_NE(store.ForTenant(2, 0), two);
}

}  // namespace
}  // namespace tandem
