#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/reserved_memory.h"
#include "common/engine/engine.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// Stores the target's hidden states of every computed token next to its keys and values: one row for every
// slot. So features are available wherever keys and values are, and are never recomputed: for a prompt in the
// prefix cache, after a preemption or a reopened session, and for a drafter that takes over
// (docs/inside/decisions/0015-features-beside-keys-and-values.md).
//
//   plane of a state:  [num_blocks * kBlockTokens, hidden_size] bfloat16, and one bit for each slot
//
// There is one plane for each state that some draft head has requested: none at first, at most
// kMaxFeatureLayers + 1. A plane is added at the first request and stays. Tokens computed before that have no
// states in it. Memory is reserved, and the system provides it as slots are written.
//
// Plain state, no locks: used only by the thread that owns the engine.
class FeatureStore {
 public:
  struct Options {
    uint32_t num_blocks = 0;
    uint32_t hidden_size = 0;  // Of the target,
    uint32_t num_layers = 0;   // and how many layers it has.
    uint64_t max_bytes = 0;    // Of all planes together.
  };
  explicit FeatureStore(const Options& options) : options_(options) {}
  static Options OptionsFor(const Engine& engine, uint64_t max_bytes);
  // Whether there is memory for at least one state.
  static bool FitsAny(const Options& options);
  // Bytes of one state of all slots; the greatest number on overflow.
  static uint64_t BytesPerState(const Options& options);

  uint32_t hidden_size() const { return options_.hidden_size; }
  uint32_t num_layers() const { return options_.num_layers; }

  // Keeps the states of `needs` from the next step on. True if some of them are new, so that no slot has them
  // yet. On an error nothing changes: InvalidArgument for needs that this target cannot meet,
  // ResourceExhausted if the planes would be too many or too large.
  absl::StatusOr<bool> Keep(const FeatureNeeds& needs);

  // The layers that rows must request from the engine.
  absl::Span<const uint32_t> layers() const { return layers_; }
  bool final_norm() const { return final_norm_; }
  uint32_t num_states() const { return static_cast<uint32_t>(planes_.size()); }
  bool empty() const { return planes_.empty(); }

  // A row was computed into `slot`: stores the states that it requested, and clears the slot's other states.
  void Write(SlotId slot, const FeatureRequest& computed);

  // Whether the slot has all states of `needs`.
  bool Has(SlotId slot, const FeatureNeeds& needs) const;
  // Appends the slot's row in wire format, FeatureRowBytes long. Has must be true.
  void AppendRow(SlotId slot, const FeatureNeeds& needs, std::string* states) const;

  // Bytes of all planes, written or not.
  uint64_t reserved_bytes() const;

 private:
  static constexpr uint32_t kFinalNorm = UINT32_MAX;  // In the place of a layer; behind all of them.

  struct Plane {
    uint32_t layer = 0;
    ReservedMemory values;
    std::vector<uint64_t> written;  // One bit for each slot.
  };

  absl::Status Check(const FeatureNeeds& needs) const;
  const Plane* Find(uint32_t layer) const;
  template <class Use>
  static void ForEachState(const FeatureNeeds& needs, const Use& use) {
    for (uint32_t layer : needs.layers) use(layer);
    if (needs.final_norm) use(kFinalNorm);
  }
  const uint16_t* ValuesOf(const Plane& plane, SlotId slot) const;

  const Options options_;
  std::vector<Plane> planes_;  // By layer, as rows ask for them.
  std::vector<uint32_t> layers_;
  bool final_norm_ = false;
};

// Rounds to the nearest bfloat16, ties to even. `to` has room for from.size() numbers.
void RoundToBf16(absl::Span<const float> from, uint16_t* to);

}  // namespace tandem
