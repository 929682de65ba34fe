#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

// A fixed 64-bit mixer (the finaliser of SplitMix64). The result is part of the wire protocol and of file
// formats: never change it.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint64_t HashCombine(uint64_t seed, uint64_t value) {
  return Mix64(seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2)));
}

// Hash of a byte string, 64 bits, the same on every machine. Not for adversarial inputs where a collision
// would matter.
constexpr uint64_t HashBytes(absl::string_view bytes, uint64_t seed = 0) {
  uint64_t hash = HashCombine(seed, bytes.size());
  uint64_t word = 0;
  int filled = 0;
  for (char c : bytes) {
    word |= static_cast<uint64_t>(static_cast<unsigned char>(c)) << (8 * filled);
    if (++filled == 8) {
      hash = HashCombine(hash, word);
      word = 0;
      filled = 0;
    }
  }
  return filled > 0 ? HashCombine(hash, word) : hash;
}

// The hash of a token prefix, extended one token at a time: PrefixHash({}) == kEmptyPrefixHash, and
// PrefixHash(tokens + t) == ExtendPrefixHash(PrefixHash(tokens), t). It fences every draft protocol message.
inline constexpr uint64_t kEmptyPrefixHash = 0x7461'6e64'656d'2e31ull;

constexpr uint64_t ExtendPrefixHash(uint64_t prefix_hash, TokenId token) {
  return HashCombine(prefix_hash, static_cast<uint32_t>(token));
}

constexpr uint64_t ExtendPrefixHash(uint64_t prefix_hash, absl::Span<const TokenId> tokens) {
  for (TokenId token : tokens) prefix_hash = ExtendPrefixHash(prefix_hash, token);
  return prefix_hash;
}

}  // namespace tandem
