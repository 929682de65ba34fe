#include "common/grammar/mask_cache.h"

#include <algorithm>
#include <cassert>

namespace tandem {

bool MaskCache::Find(absl::string_view state, absl::Span<uint32_t> mask) {
  assert(mask.size() == words_);
  const absl::MutexLock lock(&mutex_);
  const auto found = places_.find(state);
  if (found == places_.end()) return false;
  ++num_found_;
  entries_.splice(entries_.begin(), entries_, found->second);
  std::copy(found->second->mask.begin(), found->second->mask.end(), mask.begin());
  return true;
}

void MaskCache::Put(absl::string_view state, absl::Span<const uint32_t> mask) {
  assert(mask.size() == words_);
  const size_t most_bytes = max_masks_ * kNameBytes;
  if (max_masks_ == 0 || state.size() > most_bytes) return;
  const absl::MutexLock lock(&mutex_);
  if (places_.contains(state)) return;
  while (!entries_.empty() && (entries_.size() == max_masks_ || name_bytes_ + state.size() > most_bytes)) {
    name_bytes_ -= entries_.back().state.size();
    places_.erase(entries_.back().state);
    entries_.pop_back();
  }
  name_bytes_ += state.size();
  entries_.push_front({.state = std::string(state), .mask = {mask.begin(), mask.end()}});
  places_.emplace(entries_.front().state, entries_.begin());
}

uint64_t MaskCache::num_found() const {
  const absl::MutexLock lock(&mutex_);
  return num_found_;
}

}  // namespace tandem
