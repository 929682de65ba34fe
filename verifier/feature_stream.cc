#include "verifier/feature_stream.h"

#include <cassert>

namespace tandem {

uint32_t FeatureStream::NumWaiting(const FeatureText& text) {
  if (!started()) return 0;
  if (!anchored_) {
    uint32_t first = text.computed;
    while (first > needs_->first_position && text.store->Has(text.kv->CommittedSlot(first - 1), *needs_))
      --first;
    if (first >= text.computed) return 0;
    anchored_ = true;
    next_ = first;
  }
  return text.computed > next_ ? text.computed - next_ : 0;
}

Features FeatureStream::Take(const FeatureText& text, uint32_t epoch, uint32_t count) {
  assert(anchored_ && count > 0 && next_ + count <= text.computed);
  Features features{.epoch = epoch, .first_position = next_, .type = needs_->type};
  features.states.reserve(static_cast<size_t>(count * RowBytes(text)));
  for (; count > 0; --count, ++next_) {
    text.store->AppendRow(text.kv->CommittedSlot(next_), *needs_, &features.states);
  }
  return features;
}

void FeatureStream::CountSent(uint64_t number, uint64_t bytes) {
  in_flight_.emplace_back(number, bytes);
  bytes_in_flight_ += bytes;
}

uint64_t FeatureStream::BytesInFlight(uint64_t num_left) {
  while (!in_flight_.empty() && in_flight_.front().first <= num_left) {
    bytes_in_flight_ -= in_flight_.front().second;
    in_flight_.pop_front();
  }
  return bytes_in_flight_;
}

}  // namespace tandem
