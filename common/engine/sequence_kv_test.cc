#include "common/engine/sequence_kv.h"

#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAreArray;

TokenIds Counting(size_t count, TokenId first = 0) {
  TokenIds tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Reserves and marks everything.
void ComputeAll(SequenceKv* sequence) {
  const auto length = static_cast<uint32_t>(sequence->tokens().size());
  ASSERT_TRUE(sequence->Reserve(length).ok());
  sequence->MarkComputed(length);
}

TEST(SequenceKv, ReservesWholeBlocksOrNothing) {
  BlockPool pool({.num_blocks = 3});
  SequenceKv sequence(&pool, 0);
  ASSERT_TRUE(sequence.Reserve(17).ok());
  EXPECT_EQ(sequence.blocks().size(), 2u);
  EXPECT_TRUE(sequence.Reserve(32).ok());
  EXPECT_EQ(pool.num_held(), 2u);
  const absl::Status status = sequence.Reserve(49);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.num_held(), 2u);
  EXPECT_EQ(sequence.Reserve(UINT32_MAX).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(sequence.Reserve(48).ok());
}

TEST(SequenceKv, SaysWherePositionsLie) {
  BlockPool pool({.num_blocks = 4});
  SequenceKv other(&pool, 0);
  ASSERT_TRUE(other.Reserve(1).ok());
  SequenceKv sequence(&pool, 0);
  sequence.Append(Counting(20));
  ASSERT_TRUE(sequence.Reserve(20).ok());
  EXPECT_EQ(sequence.CommittedSlot(3), sequence.blocks()[0] * kBlockTokens + 3);
  EXPECT_EQ(sequence.CommittedSlot(19), sequence.blocks()[1] * kBlockTokens + 3);
  const RowContext row = sequence.CommittedRow(19);
  EXPECT_EQ(row.length(), 20u);
  EXPECT_EQ(row.num_committed, 20u);
  EXPECT_TRUE(row.tail.empty());
  EXPECT_THAT(row.blocks, ElementsAreArray(sequence.blocks()));
}

TEST(SequenceKv, TakesThePrefixButNeverTheLastTokenFromTheCache) {
  BlockPool pool({.num_blocks = 8});
  {
    SequenceKv first(&pool, 5);
    first.Start(Counting(48));
    EXPECT_EQ(first.num_computed(), 0u);
    ComputeAll(&first);
  }
  EXPECT_EQ(pool.num_cached(), 3u);
  SequenceKv same(&pool, 5);
  same.Start(Counting(48));
  EXPECT_EQ(same.num_computed(), 32u);
  EXPECT_EQ(same.num_cached(), 32u);
  EXPECT_THAT(same.tokens(), ElementsAreArray(Counting(48)));
  SequenceKv longer(&pool, 5);
  longer.Start(Counting(49));
  EXPECT_EQ(longer.num_computed(), 48u);
  SequenceKv other_tenant(&pool, 6);
  other_tenant.Start(Counting(49));
  EXPECT_EQ(other_tenant.num_computed(), 0u);
  SequenceKv empty(&pool, 5);
  empty.Start({});
  EXPECT_EQ(empty.num_computed(), 0u);
}

TEST(SequenceKv, PublishesBlocksAsTheyBecomeComplete) {
  BlockPool pool({.num_blocks = 8});
  SequenceKv writer(&pool, 0);
  writer.Append(Counting(40));
  ASSERT_TRUE(writer.Reserve(40).ok());
  const auto cached = [&] {
    SequenceKv reader(&pool, 0);
    reader.Start(Counting(40));
    return reader.num_cached();
  };
  writer.MarkComputed(15);
  EXPECT_EQ(cached(), 0u);
  writer.MarkComputed(16);
  EXPECT_EQ(cached(), 16u);
  writer.MarkComputed(40);
  EXPECT_EQ(cached(), 32u);
  EXPECT_EQ(pool.num_held(), 3u);
}

TEST(SequenceKv, GoesOnFromACachedPrefixIntoTheCache) {
  BlockPool pool({.num_blocks = 8});
  {
    SequenceKv first(&pool, 0);
    first.Start(Counting(20));
    ComputeAll(&first);
  }
  {
    SequenceKv second(&pool, 0);
    second.Start(Counting(50));
    EXPECT_EQ(second.num_cached(), 16u);
    ComputeAll(&second);
  }
  SequenceKv third(&pool, 0);
  third.Start(Counting(50));
  EXPECT_EQ(third.num_cached(), 48u);
}

TEST(SequenceKv, ATruncationInsideAnUnpublishedBlockKeepsIt) {
  BlockPool pool({.num_blocks = 8});
  SequenceKv sequence(&pool, 0);
  sequence.Append(Counting(26));
  ComputeAll(&sequence);
  const SlotId slot = sequence.CommittedSlot(20);
  sequence.Truncate(21);
  EXPECT_EQ(sequence.tokens().size(), 21u);
  EXPECT_EQ(sequence.num_computed(), 21u);
  EXPECT_EQ(sequence.CommittedSlot(20), slot);
}

TEST(SequenceKv, ATruncationInsideASharedBlockGivesItUp) {
  BlockPool pool({.num_blocks = 8});
  SequenceKv writer(&pool, 0);
  writer.Append(Counting(48));
  ComputeAll(&writer);
  SequenceKv reader(&pool, 0);
  reader.Start(Counting(48));
  ASSERT_EQ(reader.num_computed(), 32u);
  const BlockId shared = reader.blocks()[1];
  reader.Truncate(20);
  EXPECT_EQ(reader.tokens().size(), 20u);
  EXPECT_EQ(reader.num_computed(), 16u);
  EXPECT_EQ(reader.num_cached(), 16u);
  reader.Append(Counting(5, 1000));
  ASSERT_TRUE(reader.Reserve(25).ok());
  EXPECT_NE(reader.blocks()[1], shared);
  reader.MarkComputed(25);
  // What the writer wrote is found as before, and what the reader made of it beside it.
  SequenceKv old_prompt(&pool, 0);
  old_prompt.Start(Counting(48));
  EXPECT_EQ(old_prompt.blocks()[1], shared);
}

TEST(SequenceKv, ATruncationAtABlockBoundaryLosesNothing) {
  BlockPool pool({.num_blocks = 8});
  SequenceKv sequence(&pool, 0);
  sequence.Append(Counting(48));
  ComputeAll(&sequence);
  sequence.Truncate(32);
  EXPECT_EQ(sequence.num_computed(), 32u);
  EXPECT_EQ(sequence.blocks().size(), 2u);
  EXPECT_EQ(pool.num_held(), 2u);
  EXPECT_EQ(pool.num_cached(), 1u);
  sequence.Truncate(40);  // Nothing there to forget.
  EXPECT_EQ(sequence.tokens().size(), 32u);
  sequence.Truncate(0);
  EXPECT_EQ(sequence.num_computed(), 0u);
  EXPECT_EQ(pool.num_held(), 0u);
}

TEST(SequenceKv, ScratchSlotsComeFromTheirOwnBlocksAndGoBack) {
  BlockPool pool({.num_blocks = 3});
  SequenceKv sequence(&pool, 0);
  sequence.Append(Counting(3));
  ASSERT_TRUE(sequence.Reserve(3).ok());
  std::vector<SlotId> slots;
  for (uint32_t i = 0; i < 2 * kBlockTokens; ++i) slots.push_back(sequence.AllocateScratch().value());
  EXPECT_EQ(std::set<SlotId>(slots.begin(), slots.end()).size(), slots.size());
  for (SlotId slot : slots) EXPECT_NE(slot / kBlockTokens, sequence.blocks()[0]);
  EXPECT_EQ(sequence.AllocateScratch().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.num_held(), 3u);

  for (uint32_t i = 1; i < kBlockTokens; ++i) sequence.FreeScratch(slots[i]);
  EXPECT_EQ(pool.num_held(), 3u);
  EXPECT_EQ(sequence.AllocateScratch().value() / kBlockTokens, slots[0] / kBlockTokens);
  EXPECT_EQ(pool.num_held(), 3u);
  sequence.FreeScratch(slots[0]);
  EXPECT_EQ(pool.num_held(), 3u);
  sequence.FreeAllScratch();
  EXPECT_EQ(pool.num_held(), 1u);
  const SlotId only = sequence.AllocateScratch().value();
  sequence.FreeScratch(only);
  EXPECT_EQ(pool.num_held(), 1u);
}

TEST(SequenceKv, ReturnsEverythingWhenItEndsOrIsReplaced) {
  BlockPool pool({.num_blocks = 8});
  {
    SequenceKv sequence(&pool, 0);
    sequence.Append(Counting(20));
    ComputeAll(&sequence);
    ASSERT_TRUE(sequence.AllocateScratch().ok());
    SequenceKv moved(std::move(sequence));
    EXPECT_EQ(moved.num_computed(), 20u);
    EXPECT_EQ(pool.num_held(), 3u);
    SequenceKv target(&pool, 0);
    ASSERT_TRUE(target.Reserve(40).ok());
    EXPECT_EQ(pool.num_held(), 6u);
    target = std::move(moved);
    EXPECT_EQ(pool.num_held(), 3u);
    EXPECT_THAT(target.tokens(), ElementsAreArray(Counting(20)));
  }
  EXPECT_EQ(pool.num_held(), 0u);
}

TEST(SequenceKv, SuspendedItHoldsNothingAndResumesFromTheCache) {
  BlockPool pool({.num_blocks = 4});
  SequenceKv sequence(&pool, 0);
  sequence.Start(Counting(40));
  ASSERT_TRUE(sequence.Reserve(40).ok());
  ComputeAll(&sequence);
  ASSERT_TRUE(sequence.AllocateScratch().ok());
  sequence.Suspend();
  EXPECT_EQ(pool.num_held(), 0u);
  EXPECT_EQ(sequence.num_computed(), 0u);
  EXPECT_THAT(sequence.tokens(), ElementsAreArray(Counting(40)));
  sequence.Append({7});
  sequence.Resume();
  EXPECT_EQ(sequence.num_computed(), 32u);
  EXPECT_EQ(pool.num_held(), 2u);
  sequence.Suspend();
  for (int i = 0; i < 3; ++i) pool.Allocate();  // Someone else needs the memory meanwhile.
  sequence.Resume();
  EXPECT_LT(sequence.num_computed(), 32u);
}

TEST(SequenceKv, GivesBackWhatLiesBeyondItsTokens) {
  BlockPool pool({.num_blocks = 4});
  SequenceKv sequence(&pool, 0);
  sequence.Start(Counting(17));
  ASSERT_TRUE(sequence.Reserve(60).ok());
  EXPECT_EQ(pool.num_held(), 4u);
  sequence.ReleaseUnused();
  EXPECT_EQ(pool.num_held(), 2u);
  ComputeAll(&sequence);
  sequence.ReleaseUnused();
  EXPECT_EQ(sequence.num_computed(), 17u);
}

// Several sequences at random over one pool; each slot remembers the context it was written for, as the
// engine's memory would. No sequence may find anything else where it thinks its tokens are.
TEST(SequenceKv, NoSequenceDisturbsAnother) {
  constexpr uint32_t kNumBlocks = 40;
  BlockPool pool({.num_blocks = kNumBlocks});
  std::mt19937_64 random(3);
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
  std::vector<TokenIds> memory(kNumBlocks * kBlockTokens);
  std::vector<SequenceKv> sequences;
  int num_hits = 0;
  for (int step = 0; step < 20'000; ++step) {
    const size_t action = below(12);
    if (action == 0 && sequences.size() < 6) {
      TokenIds prompt;
      for (size_t i = below(60); i > 0; --i)
        prompt.push_back(static_cast<TokenId>(prompt.size() / 8 % 2 * below(2)));
      sequences.emplace_back(&pool, below(2));
      sequences.back().Start(prompt);
      num_hits += sequences.back().num_cached() > 0;
    }
    if (sequences.empty()) continue;
    const size_t index = below(sequences.size());
    SequenceKv& sequence = sequences[index];
    const auto length = static_cast<uint32_t>(sequence.tokens().size());
    if (action == 1) {
      sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(index));
      continue;
    }
    if (action < 4) sequence.Append({static_cast<TokenId>(below(2))});
    if (action == 4) sequence.Truncate(static_cast<uint32_t>(below(length + 1)));
    if (action == 5) (void)sequence.AllocateScratch();
    if (action == 6) sequence.FreeAllScratch();
    if (action == 10) sequence.ReleaseUnused();
    if (action == 11) {
      sequence.Suspend();
      ASSERT_TRUE(sequence.blocks().empty());
      sequence.Resume();
    }
    if (action > 6 && action < 10 && sequence.Reserve(length).ok()) {
      const uint32_t end =
          sequence.num_computed() + static_cast<uint32_t>(below(length - sequence.num_computed() + 1));
      for (uint32_t position = sequence.num_computed(); position < end; ++position) {
        memory[sequence.CommittedSlot(position)].assign(sequence.tokens().begin(),
                                                        sequence.tokens().begin() + position + 1);
      }
      sequence.MarkComputed(end);
    }
    std::vector<BlockId> held;
    for (const SequenceKv& each : sequences) {
      each.ListBlocks(&held);
      ASSERT_LE(each.num_cached(), each.num_computed());
      for (uint32_t position = 0; position < each.num_computed(); ++position) {
        ASSERT_THAT(memory[each.CommittedSlot(position)], ElementsAreArray(each.tokens().first(position + 1)))
            << "step " << step;
      }
    }
    ASSERT_TRUE(pool.CheckConserved(held).ok()) << pool.CheckConserved(held) << " in step " << step;
  }
  EXPECT_GT(num_hits, 30);
  sequences.clear();
  EXPECT_EQ(pool.num_held(), 0u);
}

}  // namespace
}  // namespace tandem
