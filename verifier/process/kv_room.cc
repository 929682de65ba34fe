#include "verifier/process/kv_room.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/engine/engine.h"
#include "verifier/process/model_plan.h"

namespace tandem {

KvTokens ChooseKvTokens(const KvRoom& room) {
  KvTokens chosen;
  chosen.tokens = std::min(std::max(kUsualKvTokens, room.context), kMostKvTokens);
  chosen.because = room.context >= kUsualKvTokens ? "the model's context" : "more than the model's context";
  if (room.free.has_value() && room.token_bytes > 0) {
    const uint64_t taken = room.weight_bytes + std::min(room.promised_bytes, UINT64_MAX - room.weight_bytes);
    const uint64_t left = room.free->bytes - std::min(room.free->bytes, taken);
    const double bytes = kKvMemoryShare * room.share * static_cast<double>(left);
    chosen.most = std::max(static_cast<uint64_t>(bytes) / room.token_bytes, kFewestKvTokens);
    if (*chosen.most < chosen.tokens) {
      chosen.tokens = *chosen.most;
      chosen.because = absl::StrCat(static_cast<int>(100 * kKvMemoryShare), " % of the memory that ",
                                    room.free->of, " has beside weights");
    }
  }
  chosen.tokens -= chosen.tokens % kBlockTokens;
  return chosen;
}

}  // namespace tandem
