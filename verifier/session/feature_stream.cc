#include "verifier/session/feature_stream.h"

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
    used_ = std::max(used_, first);
  }
  return text.computed > next_ ? text.computed - next_ : 0;
}

uint32_t FeatureStream::NumAllowed(const FeatureText& text) {
  const uint32_t waiting = NumWaiting(text);
  if (waiting == 0 || needs_->window == 0) return waiting;
  const uint64_t end = uint64_t{used_} + needs_->window;
  return end <= next_ ? 0 : static_cast<uint32_t>(std::min<uint64_t>(waiting, end - next_));
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
