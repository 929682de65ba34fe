#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"

namespace tandem {

// The keys and values of one sequence: a committed prefix in whole blocks, and scratch slots for the nodes
// of its candidate tree. The sessions of drafter and verifier both use it.
//
//   tokens:     t0 t1 ... t(n-1)          every committed token, whether computed yet or not
//   computed:   how many of them have keys and values (num_computed <= n)
//   reserved:   blocks held for the prefix (num_computed <= reserved * kBlockTokens); the committed length
//               and the allocated length are independent, and either may be the greater one
//   scratch:    single slots lent to tree nodes, from blocks of their own
//
// A complete, computed block may be shared through the prefix cache, so it is never written again: Step
// and CopyKv may only write positions from num_computed() on.
//
// The destructor returns every block. The pool must outlive the sequence. Used only by the thread that owns
// the engine.
class SequenceKv {
 public:
  // `space` separates tenants, and adapters, in the prefix cache.
  SequenceKv(BlockPool* pool, PrefixSpace space);
  ~SequenceKv();
  // A moved-from object may only be destroyed or assigned to.
  SequenceKv(SequenceKv&& other) noexcept;
  SequenceKv& operator=(SequenceKv&& other) noexcept;

  // Starts from `tokens`, taking as much as possible, but never the last token, from the prefix cache: the
  // last token's logits are always wanted. Only on a sequence without tokens.
  void Start(absl::Span<const TokenId> tokens);
  // Gives all blocks back and keeps the tokens. Computed blocks go to the prefix cache.
  void Suspend();
  // After Suspend: takes the blocks that the prefix cache still has, as Start does.
  void Resume();

  absl::Span<const TokenId> tokens() const { return tokens_; }
  uint32_t num_computed() const { return num_computed_; }
  uint32_t num_cached() const {
    return num_cached_;
  }  // Of num_computed, how many came from the cache at Start or Resume.

  // Rows planned before a Reserve of up to `length` stay valid after it: the block table will not move.
  void ExpectLength(uint32_t length);
  // Makes sure that positions below `length` have blocks. ResourceExhausted, without a change, if the pool
  // cannot give them and keep `blocks_to_spare` free. If all blocks are there already, this always succeeds.
  absl::Status Reserve(uint32_t length, uint32_t blocks_to_spare = 0);
  // Gives back the blocks that lie wholly beyond the tokens.
  void ReleaseUnused();
  // The context of the committed token at `position`, all before it being computed or part of the same step.
  // Needs Reserve(position + 1). The spans stay valid until the next non-const call, ExpectLength's promise
  // aside.
  RowContext CommittedRow(uint32_t position) const;
  absl::Span<const BlockId> blocks() const { return blocks_; }
  // Adds every block it holds to `held`, for BlockPool::CheckConserved.
  void ListBlocks(std::vector<BlockId>* held) const;
  // Needs Reserve(position + 1).
  SlotId CommittedSlot(uint32_t position) const;

  // Records that positions below `length` have been computed; complete blocks go to the prefix cache. Needs
  // num_computed() <= length <= tokens().size(), and Reserve(length).
  void MarkComputed(uint32_t length);
  void Append(absl::Span<const TokenId> tokens);
  // Forgets tokens (and their keys and values) from `length` on, and returns blocks that only they used. A
  // cut inside a complete block gives that block up, since others may read it: num_computed() drops to its
  // first position, and the kept tokens from there on have to be computed again.
  void Truncate(uint32_t length);

  // A slot for one tree node, or ResourceExhausted. Returned with FreeScratch, or all at once. A block of
  // scratch slots goes back to the pool with the last of its slots.
  absl::StatusOr<SlotId> AllocateScratch();
  void FreeScratch(SlotId slot);
  void FreeAllScratch();

 private:
  struct ScratchBlock {
    BlockId block = 0;
    uint32_t used = 0;  // Bit i: slot i of the block is lent.
  };

  void ReleaseBlocksFrom(size_t first);
  void ReleaseAll();

  BlockPool* pool_;
  PrefixSpace space_;
  TokenIds tokens_;
  std::vector<BlockId> blocks_;
  std::vector<uint64_t> parents_;  // Of the complete, computed blocks: what stands for the prefix they end.
  std::vector<ScratchBlock> scratch_;
  uint32_t num_computed_ = 0;
  uint32_t num_cached_ = 0;
};

}  // namespace tandem
