#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/free_memory.h"

namespace tandem {

// Of the memory that is free beside weights, the most that keys and values may take unless told otherwise.
inline constexpr double kKvMemoryShare = 0.5;
// As many tokens as most deployments need, if the model's context is no longer.
inline constexpr uint64_t kUsualKvTokens = 65536;

// What decides how many tokens of keys and values a target holds.
struct KvRoom {
  uint64_t context = 0;  // The model's, in tokens.
  uint64_t token_bytes = 0;
  std::optional<FreeMemory> free;  // Before any weights are loaded; nullopt: unknown.
  uint64_t weight_bytes = 0;       // Of all models that are about to be loaded.
  uint64_t promised_bytes = 0;     // To keys and values of other models, which take them as they need them.
  double share = 1.0;              // Of the model, among those that are about to be loaded.
};

struct KvTokens {
  uint64_t tokens = 0;
  std::optional<uint64_t> most;  // That the memory has room for; nullopt: unknown.
  std::string because;
};

// As many tokens as the model's context, at least kUsualKvTokens, as far as its share of the memory has room:
// whole blocks, and at least kFewestKvTokens.
KvTokens ChooseKvTokens(const KvRoom& room);

}  // namespace tandem
