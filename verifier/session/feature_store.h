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

// The target's hidden states of every computed token, beside its keys and values: one row for every slot. So
// a prompt that the prefix cache has, a session that was preempted or opened anew and a drafter that takes
// over all find the features of the text where its keys and values are, and nothing is computed for them
// again (docs/inside/decisions/0015-features-beside-keys-and-values.md).
//
//   plane of a state:  [num_blocks * kBlockTokens, hidden_size] bfloat16, and one bit for each slot
//
// There is one plane for each state that some draft head has asked for: none at first, and never more than
// kMaxFeatureLayers + 1. A plane is added when it is asked for and stays. What was computed before that has
// no states there. Memory is reserved, and taken from the system as slots are written.
//
// Plain state, no locks: belongs to the thread that owns the engine.
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
  // Whether there is memory for a single state at least.
  static bool FitsAny(const Options& options);
  // Of every slot; the greatest number if it is greater still.
  static uint64_t BytesPerState(const Options& options);

  uint32_t hidden_size() const { return options_.hidden_size; }
  uint32_t num_layers() const { return options_.num_layers; }

  // Keeps the states of `needs` from the next step on; true if some of them were not kept before, and no slot
  // has them yet. Changes nothing otherwise: InvalidArgument for needs that this target cannot meet,
  // ResourceExhausted for planes that would be too many or too large.
  absl::StatusOr<bool> Keep(const FeatureNeeds& needs);

  // What rows are to ask the engine for.
  absl::Span<const uint32_t> layers() const { return layers_; }
  bool final_norm() const { return final_norm_; }
  uint32_t num_states() const { return static_cast<uint32_t>(planes_.size()); }
  bool empty() const { return planes_.empty(); }

  // A row was computed into `slot`: takes over the states that it asked for and got, and forgets others that
  // the slot had.
  void Write(SlotId slot, const FeatureRequest& computed);

  // Whether the slot has all that is needed.
  bool Has(SlotId slot, const FeatureNeeds& needs) const;
  // Appends the slot's row as the wire has it, FeatureRowBytes long. Needs Has.
  void AppendRow(SlotId slot, const FeatureNeeds& needs, std::string* states) const;

  // Of all planes, whether they have been written to or not.
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

// To the nearest bfloat16, ties to even. `to` has room for from.size() numbers.
void RoundToBf16(absl::Span<const float> from, uint16_t* to);

}  // namespace tandem
