#include "common/engine/block_pool.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace tandem {

BlockPool::BlockPool(const Options& options)
    : prefix_cache_(options.prefix_cache), blocks_(options.num_blocks) {
  free_.reserve(options.num_blocks);
  // Handed out from the back: the lowest numbers first.
  for (uint32_t block = options.num_blocks; block > 0; --block) free_.push_back(block - 1);
}

std::optional<BlockId> BlockPool::Allocate() {
  BlockId block = 0;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (oldest_ != kNone) {
    block = oldest_;
    RemoveFromCached(block);
    named_.erase(blocks_[block].name);
    blocks_[block].number = 0;
  } else {
    return std::nullopt;
  }
  assert(blocks_[block].num_holders == 0 && blocks_[block].number == 0);
  blocks_[block].num_holders = 1;
  return block;
}

void BlockPool::Hold(BlockId block) {
  assert(block < blocks_.size() && blocks_[block].num_holders > 0);
  ++blocks_[block].num_holders;
}

void BlockPool::Release(BlockId block) {
  assert(block < blocks_.size() && blocks_[block].num_holders > 0);
  if (--blocks_[block].num_holders > 0) return;
  if (blocks_[block].number != 0) {
    AddToCached(block);
  } else {
    free_.push_back(block);
  }
}

uint64_t BlockPool::Publish(BlockId block, PrefixSpace space, uint64_t parent,
                            absl::Span<const TokenId> tokens) {
  assert(block < blocks_.size() && blocks_[block].num_holders > 0);
  if (!prefix_cache_) return 0;
  Block& entry = blocks_[block];
  Name name = MakeName(space, parent, tokens);
  const auto [it, inserted] = named_.try_emplace(name, block);
  if (!inserted) return blocks_[it->second].number;
  // A block has one name: publishing it under a second one would leave the first pointing at a block that no
  // longer knows it.
  assert(entry.number == 0);
  entry.name = name;
  entry.number = ++last_number_;
  return entry.number;
}

BlockPool::Match BlockPool::MatchPrefix(PrefixSpace space, absl::Span<const TokenId> tokens) {
  Match match;
  uint64_t parent = 0;
  while (tokens.size() >= kBlockTokens) {
    const auto it = named_.find(MakeName(space, parent, tokens.first(kBlockTokens)));
    if (it == named_.end()) break;
    Block& entry = blocks_[it->second];
    if (entry.num_holders++ == 0) RemoveFromCached(it->second);
    parent = entry.number;
    match.blocks.push_back(it->second);
    match.parents.push_back(parent);
    tokens.remove_prefix(kBlockTokens);
  }
  return match;
}

void BlockPool::ForgetPrefixes() {
  for (const auto& [name, block] : named_) {
    blocks_[block].number = 0;
    if (blocks_[block].num_holders > 0) continue;
    RemoveFromCached(block);
    free_.push_back(block);
  }
  named_.clear();
}

absl::Status BlockPool::CheckConserved(absl::Span<const BlockId> held) const {
  std::vector<uint32_t> holders(blocks_.size());
  for (BlockId block : held) {
    if (block >= blocks_.size()) return absl::InternalError(absl::StrCat("block ", block, " is held"));
    ++holders[block];
  }
  // How often each block is in the list of free blocks or in that of cached ones.
  std::vector<uint32_t> places(blocks_.size());
  for (BlockId block : free_) ++places[block];
  uint32_t num_listed = 0;
  for (uint32_t block = oldest_; block != kNone; block = blocks_[block].newer) {
    ++places[block];
    if (++num_listed > num_cached_ || blocks_[block].number == 0) break;
  }
  if (num_listed != num_cached_) {
    return absl::InternalError(
        absl::StrCat(num_listed, " blocks are listed as cached, ", num_cached_, " counted"));
  }
  for (size_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block].num_holders != holders[block] || places[block] != (holders[block] == 0 ? 1 : 0)) {
      return absl::InternalError(absl::StrCat(
          "block ", block, " is held ", holders[block], " times, counted ", blocks_[block].num_holders,
          " times, and is in ", places[block], " of the lists of free and of cached blocks"));
    }
  }
  return absl::OkStatus();
}

BlockPool::Name BlockPool::MakeName(PrefixSpace space, uint64_t parent, absl::Span<const TokenId> tokens) {
  assert(tokens.size() == kBlockTokens);
  Name name{.space = space, .parent = parent};
  std::copy(tokens.begin(), tokens.end(), name.tokens.begin());
  return name;
}

void BlockPool::AddToCached(BlockId block) {
  blocks_[block].older = newest_;
  blocks_[block].newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = block;
  newest_ = block;
  ++num_cached_;
}

void BlockPool::RemoveFromCached(BlockId block) {
  const Block& entry = blocks_[block];
  (entry.older == kNone ? oldest_ : blocks_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : blocks_[entry.newer].older) = entry.older;
  --num_cached_;
}

}  // namespace tandem
