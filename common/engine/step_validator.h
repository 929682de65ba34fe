#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/engine.h"

namespace tandem {

// Where a row's own keys and values go. The context has at least one token.
SlotId LastSlot(const RowContext& context);

// Checks a step before an engine writes anything, and refuses invalid ones: see Engine::Step.
class StepValidator {
 public:
  struct Options {
    int32_t vocab_size = 0;
    uint32_t num_blocks = 0;
    uint32_t max_rows = 0;
    uint32_t max_context = 0;
    bool chooses = false;
    // Layers of the model, for an engine that has features.
    std::optional<uint32_t> feature_layers;
    // For a draft head: the size of a target's states, and of its own state, 0 if it reads none.
    std::optional<uint32_t> target_state_size;
    uint32_t own_state_size = 0;
  };

  explicit StepValidator(const Options& options);

  // InvalidArgument names the row and what was expected. Not const: it remembers which slots a step writes.
  absl::Status CheckRows(absl::Span<const StepRow> rows);
  absl::Status CheckCopies(absl::Span<const KvCopy> copies) const;

  // From now on rows may name this adapter, or no longer may.
  void AllowAdapter(AdapterId adapter) { adapters_.push_back(adapter); }
  void ForbidAdapter(AdapterId adapter) { std::erase(adapters_, adapter); }

 private:
  absl::Status CheckRow(const StepRow& row, size_t index) const;
  absl::Status CheckChoice(const StepRow& row, const StepRow* before, size_t index) const;
  absl::Status CheckFeatures(const FeatureRequest& request, size_t index) const;
  absl::Status CheckState(const StepRow& row, size_t index) const;
  absl::Status CheckCounts(absl::Span<const TokenCount> counts, size_t index) const;
  absl::Status CheckSlot(SlotId slot, absl::string_view what, size_t index) const;

  const Options options_;
  // The step in which each slot was last written, so that two rows of one step cannot write the same slot.
  std::vector<uint32_t> slot_step_;
  uint32_t step_ = 0;
  std::vector<AdapterId> adapters_;
};

}  // namespace tandem
