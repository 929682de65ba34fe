#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "verifier/session/feature_store.h"

namespace tandem {

// The features of one step's rows: makes rows request the states that the store keeps, and stores the results
// of rows that become committed text. Most nodes of a tree do not.
//
//   Plan -> the engine's step -> KeepCommitted, Keep of each accepted node
class FeatureStep {
 public:
  // Makes every row request all states that `store` keeps now; none if there is no store or it keeps none.
  // `rows` must not move until the step is finished.
  void Plan(const FeatureStore* store, absl::Span<StepRow> rows);
  // Stores the features of rows without a tail: prompts and roots.
  void KeepCommitted(absl::Span<const StepRow> rows, FeatureStore* store) const;
  // Stores the features of one row under the slot to which its keys and values will be copied.
  void Keep(uint32_t row, SlotId slot, FeatureStore* store) const;

 private:
  // A copy, because the store may keep more states before the step ends.
  std::vector<uint32_t> layers_;
  std::vector<float> states_;  // [rows, states, hidden_size]
  std::vector<FeatureRequest> requests_;
};

}  // namespace tandem
