#pragma once

#include <cstddef>
#include <deque>
#include <utility>

namespace tandem {

// How much a stream may hold for a peer that reads slowly. A message larger than `max_queued_bytes` still
// goes out when nothing else is queued.
struct StreamLimits {
  size_t max_queued_messages = 1024;
  size_t max_queued_bytes = size_t{8} << 20;
};

// Messages waiting for the one write in flight. Not thread-safe: the owning stream holds its mutex.
template <class Message>
class OutboundQueue {
 public:
  explicit OutboundQueue(const StreamLimits& limits) : limits_(limits) {}

  bool empty() const { return messages_.empty(); }

  // False, leaving the queue as it was, when the message would exceed the limits.
  [[nodiscard]] bool Push(Message message) {
    const size_t bytes = message.ByteSizeLong();
    const bool too_many = messages_.size() >= limits_.max_queued_messages;
    const bool too_large =
        !messages_.empty() && (bytes > limits_.max_queued_bytes || bytes_ > limits_.max_queued_bytes - bytes);
    if (too_many || too_large) return false;
    bytes_ += bytes;
    messages_.push_back({std::move(message), bytes});
    return true;
  }

  // The queue is not empty.
  Message Pop() {
    Entry entry = std::move(messages_.front());
    messages_.pop_front();
    bytes_ -= entry.bytes;
    return std::move(entry.message);
  }

  void Clear() {
    messages_.clear();
    bytes_ = 0;
  }

 private:
  struct Entry {
    Message message;
    size_t bytes;
  };

  const StreamLimits limits_;
  std::deque<Entry> messages_;
  size_t bytes_ = 0;
};

}  // namespace tandem
