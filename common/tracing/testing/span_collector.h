#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/tracing/span.h"

namespace tandem {

// Keeps all spans, for tests to look at. Thread-safe.
class SpanCollector final : public SpanSink {
 public:
  void Offer(SpanRecord span) override {
    absl::MutexLock lock(&mutex_);
    spans_.push_back(std::move(span));
  }

  // Those of a name so far; of an empty name all.
  std::vector<SpanRecord> spans(absl::string_view name = "") const {
    absl::MutexLock lock(&mutex_);
    std::vector<SpanRecord> found;
    std::copy_if(spans_.begin(), spans_.end(), std::back_inserter(found),
                 [&](const SpanRecord& span) { return name.empty() || span.name == name; });
    return found;
  }

  // Waits until there are `count` of the name; false after a generous while without.
  bool WaitFor(absl::string_view name, size_t count) const {
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return static_cast<size_t>(std::count_if(spans_.begin(), spans_.end(), [&](const SpanRecord& span) {
               return span.name == name;
             })) >= count;
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(60));
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<SpanRecord> spans_ ABSL_GUARDED_BY(mutex_);
};

// The value of an attribute; nullptr if the span has none of that key and type.
template <class Value>
const Value* AttributeOf(const SpanRecord& span, absl::string_view key) {
  for (const SpanAttribute& attribute : span.attributes) {
    if (attribute.key == key) return std::get_if<Value>(&attribute.value);
  }
  return nullptr;
}

}  // namespace tandem
