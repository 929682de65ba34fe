#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace tandem {

// Caches the masks of one constraint by the name of their state: within a string, an output is in the same
// state after every word. Evicts the least recently used, by number and by the bytes of their names.
// Thread-safe.
class MaskCache {
 public:
  // Keeps `max_masks` of `words` words each; 0: none.
  MaskCache(size_t max_masks, size_t words) : max_masks_(max_masks), words_(words) {}

  // Copies the mask of a state. False on a miss. `mask`: [words].
  bool Find(absl::string_view state, absl::Span<uint32_t> mask);
  // `mask` [words]. Does nothing if it is known.
  void Put(absl::string_view state, absl::Span<const uint32_t> mask);

  // Bytes of a full cache.
  size_t max_bytes() const {
    return max_masks_ * (words_ * sizeof(uint32_t) + kNameBytes + sizeof(Entry) + kPlaceBytes);
  }
  uint64_t num_found() const;

 private:
  struct Entry {
    std::string state;
    std::vector<uint32_t> mask;
  };

  // Of a state's name, on average over all that are kept; most are shorter.
  static constexpr size_t kNameBytes = 1024;
  // Of a node of the list and of a place in the map.
  static constexpr size_t kPlaceBytes = 64;

  const size_t max_masks_;
  const size_t words_;
  mutable absl::Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // Used last in front. Their texts are the keys below.
  absl::flat_hash_map<absl::string_view, std::list<Entry>::iterator> places_ ABSL_GUARDED_BY(mutex_);
  size_t name_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_found_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem
