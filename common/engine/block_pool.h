#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"

namespace tandem {

// Who owns which block of keys and values: reference counts, the free list and the prefix cache.
//
// A block is free, or held by one or more sequences, or cached: complete, held by nobody, kept for a later
// prompt with the same prefix until it is the least recently used and someone needs a block. Blocks are
// conserved: num_free() + num_held() + num_cached() == num_blocks() at all times.
//
// The cache is keyed by the hash chain of a block's tokens and all before it, salted per tenant so that one
// tenant can neither read nor time another's prompts; a hit also compares the tokens, so a hash collision is
// a miss.
//
// Plain state, no locks: belongs to the thread that owns the engine.
class BlockPool {
 public:
  struct Options {
    uint32_t num_blocks = 0;
    bool prefix_cache = true;
  };
  explicit BlockPool(const Options& options);

  // A free block, or the least recently used cached one, held once; nothing when all are held.
  std::optional<BlockId> Allocate();
  void Hold(BlockId block);
  void Release(BlockId block);

  // Names a complete block that the caller holds: `tokens` (kBlockTokens of them) follow the prefix that
  // `parent` stands for (0 for the first block). Returns the hash that stands for the prefix including this
  // block, to be the next block's parent. When the same content is already cached, the earlier block stays
  // the named one.
  uint64_t Publish(BlockId block, uint64_t salt, uint64_t parent, absl::Span<const TokenId> tokens);

  struct Match {
    std::vector<BlockId> blocks;  // Each held once for the caller.
    uint64_t parent = 0;          // Hash that stands for the matched prefix.
  };
  // The longest cached prefix of `tokens` in whole blocks.
  Match MatchPrefix(uint64_t salt, absl::Span<const TokenId> tokens);

  uint32_t num_blocks() const;
  uint32_t num_free() const;
  uint32_t num_held() const;
  uint32_t num_cached() const;
  // How many Allocate calls would succeed now.
  uint32_t num_available() const { return num_free() + num_cached(); }
};

}  // namespace tandem
