#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/token.h"
#include "common/engine/engine.h"
#include "gtest/gtest.h"

// What tests of the engine on an emulated and on a real GPU ask of it.
namespace tandem {

using Logits = std::vector<float>;

// Logits after each of `tokens`, computed `chunk` at a time in blocks 0, 1, ...
inline std::vector<Logits> ComputeAll(Engine* engine, const TokenIds& tokens, uint32_t chunk) {
  std::vector<BlockId> blocks(engine->num_blocks());
  for (BlockId block = 0; block < blocks.size(); ++block) blocks[block] = block;
  std::vector<Logits> logits(tokens.size(), Logits(static_cast<size_t>(engine->config().vocab_size)));
  for (uint32_t begin = 0; begin < tokens.size(); begin += chunk) {
    std::vector<StepRow> rows;
    for (uint32_t i = begin; i < std::min<size_t>(begin + chunk, tokens.size()); ++i) {
      rows.push_back({.token = tokens[i],
                      .context = {.blocks = blocks, .num_committed = i + 1},
                      .logits = logits[i].data()});
    }
    const absl::Status status = engine->Step(rows);
    EXPECT_TRUE(status.ok()) << status;
  }
  return logits;
}

inline TokenIds SomeTokens(size_t count, int32_t vocab_size) {
  TokenIds tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(i * 7919 % static_cast<size_t>(vocab_size)));
  }
  return tokens;
}

inline bool SameBits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tandem
