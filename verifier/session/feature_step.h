#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "verifier/session/feature_store.h"

namespace tandem {

// Features of the rows of one step: lets rows ask for what the store keeps, and hands it what they got, of
// those rows that turn out to be committed text. Of a tree's nodes most are not.
//
//   Plan -> the engine's step -> KeepCommitted, Keep of each accepted node
class FeatureStep {
 public:
  // Every row asks for all states that `store` keeps at this moment; for none if there is no store, or if it
  // keeps none. `rows` do not move until the step has been finished.
  void Plan(const FeatureStore* store, absl::Span<StepRow> rows);
  // Of the rows that have no tail: prompts and roots.
  void KeepCommitted(absl::Span<const StepRow> rows, FeatureStore* store) const;
  // Of one row, into the slot that its keys and values are going to be in.
  void Keep(uint32_t row, SlotId slot, FeatureStore* store) const;

 private:
  // The store may come to keep more while the step is under way.
  std::vector<uint32_t> layers_;
  std::vector<float> states_;  // [rows, states, hidden_size]
  std::vector<FeatureRequest> requests_;
};

}  // namespace tandem
