#include "verifier/session/feature_step.h"

#include <cstddef>

namespace tandem {

void FeatureStep::Plan(const FeatureStore* store, absl::Span<StepRow> rows) {
  requests_.clear();
  if (store == nullptr || store->empty()) return;
  layers_.assign(store->layers().begin(), store->layers().end());
  const size_t row_size = size_t{store->num_states()} * store->hidden_size();
  if (states_.size() < rows.size() * row_size) states_.resize(rows.size() * row_size);
  requests_.reserve(rows.size());
  float* place = states_.data();
  for (StepRow& row : rows) {
    requests_.push_back({.layers = layers_, .final_norm = store->final_norm(), .states = place});
    row.features = &requests_.back();
    place += row_size;
  }
}

void FeatureStep::KeepCommitted(absl::Span<const StepRow> rows, FeatureStore* store) const {
  if (store == nullptr || store->empty()) return;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const RowContext& context = rows[i].context;
    if (!context.tail.empty()) continue;
    const uint32_t position = context.num_committed - 1;
    Keep(i, context.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens, store);
  }
}

void FeatureStep::Keep(uint32_t row, SlotId slot, FeatureStore* store) const {
  if (store == nullptr || store->empty()) return;
  // A row that asked for nothing takes away what the slot had.
  store->Write(slot, requests_.empty() ? FeatureRequest{} : requests_[row]);
}

}  // namespace tandem
