#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"

namespace tandem {

// The owner of cached prefixes: a prefix computed in one space is never found in another.
struct PrefixSpace {
  // NOLINTNEXTLINE(google-explicit-constructor): most have no adapter.
  PrefixSpace(uint64_t tenant_salt = 0, AdapterId used_adapter = kNoAdapter)
      : salt(tenant_salt), adapter(used_adapter) {}

  uint64_t salt;      // Of the tenant.
  AdapterId adapter;  // That computed them.

  bool operator==(const PrefixSpace&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const PrefixSpace& space) {
    return H::combine(std::move(state), space.salt, space.adapter);
  }
};

// Manages the KV cache blocks: reference counts, the free list and the prefix cache.
//
// A block is free, held by one or more sequences, or cached. A cached block is complete, held by no
// sequence, and kept for a later prompt with the same prefix. When a block is needed, the least recently
// used one is evicted. Blocks are conserved: num_free() + num_held() + num_cached() == num_blocks() at all
// times (CheckConserved).
//
// The cache is a trie. A block is found by its space, its parent and its tokens, which are all compared in
// full, and the number that identifies it as a parent is never reused. So a hash collision is a miss, one
// tenant (one salt) can neither read another tenant's prompts nor detect them by timing, and no two
// adapters share a block.
//
// Plain state without locks: belongs to the thread that owns the engine.
class BlockPool {
 public:
  struct Options {
    uint32_t num_blocks = 0;
    bool prefix_cache = true;
  };
  explicit BlockPool(const Options& options);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A free block, or the least recently used cached one, held once; nullopt if all are held.
  std::optional<BlockId> Allocate();
  // `block` must be held already.
  void Hold(BlockId block);
  // Undoes one Allocate, Hold or match. The last release of a named block caches it, of any other frees it.
  // Release a sequence's blocks last to first: then a prefix outlives what follows it.
  void Release(BlockId block);

  // Names a complete block that the caller holds: `tokens` (kBlockTokens of them) follow the prefix that
  // `parent` stands for (0 for the first block). Returns the number that stands for the prefix including this
  // block, to be the next block's parent. When the same content is already named, the earlier block stays the
  // named one. Whoever named a block must not write to it any more. Without a prefix cache this returns 0.
  uint64_t Publish(BlockId block, PrefixSpace space, uint64_t parent, absl::Span<const TokenId> tokens);

  struct Match {
    std::vector<BlockId> blocks;    // Each held once for the caller, who may read but never write them.
    std::vector<uint64_t> parents;  // parents[i] stands for the prefix up to and including blocks[i].
  };
  // Removes the names of all blocks: no block computed so far matches a prefix any more, nor do blocks after
  // it. Held blocks stay held; cached ones become free.
  void ForgetPrefixes();
  // The longest cached prefix of `tokens` in whole blocks.
  Match MatchPrefix(PrefixSpace space, absl::Span<const TokenId> tokens);

  uint32_t num_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_held() const { return num_blocks() - num_free() - num_cached(); }
  uint32_t num_cached() const { return num_cached_; }
  // How many Allocate calls would succeed now.
  uint32_t num_available() const { return num_free() + num_cached(); }

  // For tests and simulations: checks that every block is exactly one of free, cached and held, and is held
  // as often as it occurs in `held`, the list of all blocks that all holders hold. Internal names the first
  // block that is not.
  absl::Status CheckConserved(absl::Span<const BlockId> held) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Name {
    PrefixSpace space;
    uint64_t parent = 0;
    std::array<TokenId, kBlockTokens> tokens{};

    bool operator==(const Name&) const = default;
    template <typename H>
    friend H AbslHashValue(H state, const Name& name) {
      return H::combine(std::move(state), name.space, name.parent, name.tokens);
    }
  };
  struct Block {
    uint32_t num_holders = 0;
    uint64_t number = 0;     // Stands for the prefix that ends here; 0 while the block is unnamed.
    Name name;               // Meaningful while `number` is not 0.
    uint32_t older = kNone;  // Neighbours in the list of cached blocks.
    uint32_t newer = kNone;
  };

  static Name MakeName(PrefixSpace space, uint64_t parent, absl::Span<const TokenId> tokens);
  void AddToCached(BlockId block);
  void RemoveFromCached(BlockId block);

  const bool prefix_cache_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  absl::flat_hash_map<Name, BlockId> named_;
  uint64_t last_number_ = 0;
  uint32_t num_cached_ = 0;
  uint32_t oldest_ = kNone;  // Ends of the list of cached blocks, in the order they were released.
  uint32_t newest_ = kNone;
};

}  // namespace tandem
