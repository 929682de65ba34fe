#pragma once

#include <cstdint>

namespace tandem {

// The root of a tree of candidates, the last committed token, where nodes are known by their index.
inline constexpr uint32_t kRootNode = UINT32_MAX;

// The place of a node, or of the root, in lists that begin with the root, such as a round's rows.
constexpr uint32_t PlaceAfterRoot(uint32_t node) {
  return node == kRootNode ? 0 : node + 1;
}

}  // namespace tandem
