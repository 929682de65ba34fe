#include "common/engine/block_pool.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A block's worth of tokens, all `token`.
TokenIds Block(TokenId token) {
  return TokenIds(kBlockTokens, token);
}

TokenIds Blocks(std::initializer_list<TokenId> tokens) {
  TokenIds all;
  for (TokenId token : tokens) all.insert(all.end(), kBlockTokens, token);
  return all;
}

// Publishes one new block per token after one another and releases them, last to first. Returns the blocks.
std::vector<BlockId> Cache(BlockPool* pool, uint64_t salt, std::initializer_list<TokenId> tokens) {
  std::vector<BlockId> blocks;
  uint64_t parent = 0;
  for (TokenId token : tokens) {
    blocks.push_back(pool->Allocate().value());
    parent = pool->Publish(blocks.back(), salt, parent, Block(token));
  }
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) pool->Release(*block);
  return blocks;
}

std::vector<BlockId> MatchAndRelease(BlockPool* pool, uint64_t salt, const TokenIds& tokens) {
  BlockPool::Match match = pool->MatchPrefix(salt, tokens);
  EXPECT_EQ(match.blocks.size(), match.parents.size());
  for (auto block = match.blocks.rbegin(); block != match.blocks.rend(); ++block) pool->Release(*block);
  return match.blocks;
}

TEST(BlockPool, HandsOutEveryBlockOnce) {
  BlockPool pool({.num_blocks = 3});
  EXPECT_EQ(pool.num_available(), 3u);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.Allocate().value());
  EXPECT_THAT(blocks, testing::UnorderedElementsAre(0, 1, 2));
  EXPECT_EQ(pool.Allocate(), std::nullopt);
  EXPECT_EQ(pool.num_held(), 3u);
  pool.Release(blocks[1]);
  EXPECT_EQ(pool.Allocate(), blocks[1]);
}

TEST(BlockPool, AHeldBlockNeedsAsManyReleasesAsHolds) {
  BlockPool pool({.num_blocks = 1});
  const BlockId block = pool.Allocate().value();
  pool.Hold(block);
  pool.Release(block);
  EXPECT_EQ(pool.num_held(), 1u);
  EXPECT_EQ(pool.Allocate(), std::nullopt);
  pool.Release(block);
  EXPECT_EQ(pool.num_free(), 1u);
}

TEST(BlockPool, FindsTheLongestCachedPrefixInWholeBlocks) {
  BlockPool pool({.num_blocks = 8});
  const std::vector<BlockId> blocks = Cache(&pool, 1, {10, 20, 30});
  EXPECT_EQ(pool.num_cached(), 3u);
  EXPECT_EQ(MatchAndRelease(&pool, 1, Blocks({10, 20, 30, 40})), blocks);
  EXPECT_THAT(MatchAndRelease(&pool, 1, Blocks({10, 20, 31})), ElementsAre(blocks[0], blocks[1]));
  TokenIds partial = Blocks({10, 20});
  partial.pop_back();
  EXPECT_THAT(MatchAndRelease(&pool, 1, partial), ElementsAre(blocks[0]));
  EXPECT_THAT(MatchAndRelease(&pool, 1, Blocks({20})), IsEmpty());
  EXPECT_THAT(MatchAndRelease(&pool, 1, {}), IsEmpty());
}

TEST(BlockPool, MatchedBlocksAreHeldForTheCaller) {
  BlockPool pool({.num_blocks = 2});
  const std::vector<BlockId> blocks = Cache(&pool, 1, {10, 20});
  BlockPool::Match first = pool.MatchPrefix(1, Blocks({10, 20}));
  BlockPool::Match second = pool.MatchPrefix(1, Blocks({10}));
  EXPECT_EQ(pool.num_held(), 2u);
  EXPECT_EQ(pool.Allocate(), std::nullopt);
  pool.Release(blocks[1]);
  pool.Release(blocks[0]);
  EXPECT_EQ(pool.num_held(), 1u);
  pool.Release(blocks[0]);
  EXPECT_EQ(pool.num_cached(), 2u);
}

TEST(BlockPool, SaltsSeparateTenants) {
  BlockPool pool({.num_blocks = 4});
  const std::vector<BlockId> mine = Cache(&pool, 1, {10, 20});
  EXPECT_THAT(MatchAndRelease(&pool, 2, Blocks({10, 20})), IsEmpty());
  const std::vector<BlockId> theirs = Cache(&pool, 2, {10, 20});
  EXPECT_EQ(MatchAndRelease(&pool, 1, Blocks({10, 20})), mine);
  EXPECT_EQ(MatchAndRelease(&pool, 2, Blocks({10, 20})), theirs);
}

TEST(BlockPool, ABlockIsFoundOnlyAfterItsOwnPrefix) {
  BlockPool pool({.num_blocks = 4});
  const std::vector<BlockId> first = Cache(&pool, 1, {10, 99});
  const std::vector<BlockId> second = Cache(&pool, 1, {20, 99});
  EXPECT_EQ(MatchAndRelease(&pool, 1, Blocks({10, 99})), first);
  EXPECT_EQ(MatchAndRelease(&pool, 1, Blocks({20, 99})), second);
  EXPECT_THAT(MatchAndRelease(&pool, 1, Blocks({99})), IsEmpty());
}

TEST(BlockPool, ComparesEveryToken) {
  BlockPool pool({.num_blocks = 4});
  Cache(&pool, 1, {10});
  for (uint32_t i = 0; i < kBlockTokens; ++i) {
    TokenIds tokens = Block(10);
    tokens[i] = 11;
    EXPECT_THAT(MatchAndRelease(&pool, 1, tokens), IsEmpty()) << i;
  }
}

// The prefix that a parent stands for is never confused with one that came later, even after the block is
// gone.
TEST(BlockPool, AParentWhoseBlockWasEvictedIsNotFoundUnderAnother) {
  BlockPool pool({.num_blocks = 2});
  const BlockId parent = pool.Allocate().value();
  const uint64_t number = pool.Publish(parent, 1, 0, Block(10));
  const BlockId child = pool.Allocate().value();
  pool.Publish(child, 1, number, Block(99));
  pool.Release(parent);
  EXPECT_EQ(pool.Allocate(), parent);
  EXPECT_NE(pool.Publish(parent, 1, 0, Block(20)), number);
  EXPECT_THAT(MatchAndRelease(&pool, 1, Blocks({20, 99})), ElementsAre(parent));
}

TEST(BlockPool, EvictsTheLeastRecentlyUsedFirst) {
  BlockPool pool({.num_blocks = 3});
  Cache(&pool, 1, {10});
  Cache(&pool, 1, {20});
  Cache(&pool, 1, {30});
  EXPECT_EQ(MatchAndRelease(&pool, 1, Block(10)).size(), 1u);  // Now the most recently used.
  pool.Release(pool.Allocate().value());
  EXPECT_THAT(MatchAndRelease(&pool, 1, Block(20)), IsEmpty());
  EXPECT_EQ(MatchAndRelease(&pool, 1, Block(30)).size(), 1u);
  const BlockId first = pool.Allocate().value();  // The free one,
  pool.Allocate().value();                        // then the oldest cached one.
  EXPECT_THAT(MatchAndRelease(&pool, 1, Block(10)), IsEmpty());
  EXPECT_EQ(MatchAndRelease(&pool, 1, Block(30)).size(), 1u);
  pool.Release(first);
}

TEST(BlockPool, ReleasedLastToFirstAPrefixOutlivesWhatFollowsIt) {
  BlockPool pool({.num_blocks = 3});
  const std::vector<BlockId> blocks = Cache(&pool, 1, {10, 20, 30});
  EXPECT_EQ(pool.Allocate(), blocks[2]);
  EXPECT_THAT(MatchAndRelease(&pool, 1, Blocks({10, 20, 30})), ElementsAre(blocks[0], blocks[1]));
}

TEST(BlockPool, TheEarlierBlockKeepsTheName) {
  BlockPool pool({.num_blocks = 3});
  const BlockId earlier = pool.Allocate().value();
  const BlockId later = pool.Allocate().value();
  const uint64_t number = pool.Publish(earlier, 1, 0, Block(10));
  EXPECT_EQ(pool.Publish(later, 1, 0, Block(10)), number);
  EXPECT_EQ(pool.Publish(earlier, 1, 0, Block(10)), number);
  pool.Release(later);
  EXPECT_EQ(pool.num_free(), 2u);
  pool.Release(earlier);
  EXPECT_EQ(pool.num_cached(), 1u);
  EXPECT_THAT(MatchAndRelease(&pool, 1, Block(10)), ElementsAre(earlier));
}

TEST(BlockPool, ForgetsPrefixesAndKeepsWhatIsHeld) {
  BlockPool pool({.num_blocks = 6});
  Cache(&pool, 1, {7, 8});
  // Somebody goes on from what is cached, and somebody else is in the middle of a text.
  const BlockPool::Match held = pool.MatchPrefix(1, Blocks({7}));
  ASSERT_EQ(held.blocks.size(), 1u);
  const BlockId next = pool.Allocate().value();
  pool.ForgetPrefixes();
  EXPECT_EQ(pool.num_cached(), 0u);
  EXPECT_EQ(pool.num_held(), 2u);
  EXPECT_THAT(MatchAndRelease(&pool, 1, Blocks({7, 8})), IsEmpty());
  // What follows a forgotten prefix cannot be found either.
  pool.Publish(next, 1, held.parents[0], Block(9));
  EXPECT_THAT(MatchAndRelease(&pool, 1, Blocks({7, 9})), IsEmpty());
  EXPECT_TRUE(pool.CheckConserved({held.blocks[0], next}).ok());
  pool.Release(next);
  pool.Release(held.blocks[0]);
  EXPECT_EQ(pool.num_available(), 6u);
  EXPECT_TRUE(pool.CheckConserved({}).ok());
  // And the same text is cached anew.
  const std::vector<BlockId> again = Cache(&pool, 1, {7, 8});
  EXPECT_EQ(MatchAndRelease(&pool, 1, Blocks({7, 8})), again);
}

TEST(BlockPool, CachesNothingWhenToldSo) {
  BlockPool pool({.num_blocks = 2, .prefix_cache = false});
  const BlockId block = pool.Allocate().value();
  EXPECT_EQ(pool.Publish(block, 1, 0, Block(10)), 0u);
  pool.Release(block);
  EXPECT_EQ(pool.num_free(), 2u);
  EXPECT_THAT(MatchAndRelease(&pool, 1, Block(10)), IsEmpty());
}

// Random operations against a count of who holds what. Sanitizers make each ten times as slow.
#ifdef TANDEM_SANITIZED
constexpr int kOperations = 10'000;
#else
constexpr int kOperations = 100'000;
#endif

TEST(BlockPool, ConservesBlocks) {
  constexpr uint32_t kNumBlocks = 23;
  BlockPool pool({.num_blocks = kNumBlocks});
  std::mt19937_64 random(1);
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
  struct Chain {
    uint64_t salt;
    std::vector<BlockId> blocks;
    std::vector<uint64_t> parents;
  };
  std::vector<Chain> chains;
  std::vector<uint32_t> holders(kNumBlocks);
  for (int i = 0; i < kOperations; ++i) {
    const size_t action = below(10);
    if (action < 2) {
      chains.push_back({.salt = below(2)});
      BlockPool::Match match = pool.MatchPrefix(
          chains.back().salt, Blocks({static_cast<TokenId>(below(3)), static_cast<TokenId>(below(3)), 1, 1}));
      for (BlockId block : match.blocks) ++holders[block];
      chains.back().blocks = match.blocks;
      chains.back().parents = match.parents;
    } else if (action < 7 && !chains.empty()) {
      Chain& chain = chains[below(chains.size())];
      const std::optional<BlockId> block = pool.Allocate();
      ASSERT_EQ(block.has_value(), std::count(holders.begin(), holders.end(), 0u) > 0);
      if (block.has_value()) {
        ASSERT_EQ(holders[*block]++, 0u);
        const uint64_t parent = chain.parents.empty() ? 0 : chain.parents.back();
        chain.blocks.push_back(*block);
        chain.parents.push_back(
            pool.Publish(*block, chain.salt, parent, Block(static_cast<TokenId>(below(3)))));
      }
    } else if (action < 8 && !chains.empty()) {
      const Chain& chain = chains[below(chains.size())];
      for (BlockId block : chain.blocks) {
        pool.Hold(block);
        ++holders[block];
      }
      chains.push_back(Chain(chain));
    } else if (!chains.empty()) {
      const size_t index = below(chains.size());
      for (auto block = chains[index].blocks.rbegin(); block != chains[index].blocks.rend(); ++block) {
        pool.Release(*block);
        --holders[*block];
      }
      chains.erase(chains.begin() + static_cast<std::ptrdiff_t>(index));
    }
    ASSERT_EQ(pool.num_free() + pool.num_held() + pool.num_cached(), kNumBlocks);
    ASSERT_EQ(pool.num_held(),
              kNumBlocks - static_cast<uint32_t>(std::count(holders.begin(), holders.end(), 0u)));
    std::vector<BlockId> held;
    for (const Chain& each : chains) held.insert(held.end(), each.blocks.begin(), each.blocks.end());
    ASSERT_TRUE(pool.CheckConserved(held).ok()) << pool.CheckConserved(held);
  }
}

TEST(BlockPool, TellsWhenHoldersAndCountsDiffer) {
  BlockPool pool({.num_blocks = 3});
  Cache(&pool, 1, {10});
  const BlockId first = pool.Allocate().value();
  const BlockId second = pool.Allocate().value();
  pool.Hold(second);
  EXPECT_TRUE(pool.CheckConserved({first, second, second}).ok());
  EXPECT_TRUE(pool.CheckConserved({second, first, second}).ok());
  EXPECT_TRUE(absl::IsInternal(pool.CheckConserved({first, second})));         // A holder was lost,
  EXPECT_TRUE(absl::IsInternal(pool.CheckConserved({second, second})));        // or a block leaked,
  EXPECT_TRUE(absl::IsInternal(pool.CheckConserved({first, first, second})));  // or one is another's,
  EXPECT_TRUE(absl::IsInternal(pool.CheckConserved({0, first, second, second, 1, 2})));
  EXPECT_TRUE(
      absl::IsInternal(pool.CheckConserved({first, second, second, 3})));  // or there is no such block.
}

}  // namespace
}  // namespace tandem
