#pragma once

#include <cstddef>
#include <deque>
#include <utility>

namespace tandem {

// How much a stream may queue for a peer that reads slowly. A message larger than `max_queued_bytes` is still
// accepted if nothing else is queued.
struct StreamLimits {
  size_t max_queued_messages = 1024;
  size_t max_queued_bytes = size_t{8} << 20;
  // Limit for messages that all others pass. A message beyond it is refused, without ending the stream.
  size_t max_bytes_behind = size_t{16} << 20;
  // When at most this is left of them, the stream reports that there is room.
  size_t low_bytes_behind = size_t{256} << 10;
};

// Messages that wait for the one write in flight; in a second lane, those that wait until there are no
// others. Not thread-safe: the owning stream holds its mutex.
template <class Message>
class OutboundQueue {
 public:
  explicit OutboundQueue(const StreamLimits& limits) : limits_(limits) {}

  bool empty() const { return messages_.empty() && behind_.empty(); }
  size_t bytes() const { return bytes_; }
  size_t num_behind() const { return behind_.size(); }
  size_t bytes_behind() const { return bytes_behind_; }

  // False, and the queue stays unchanged, if the message would exceed the limits.
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

  // The same for a message that all others pass.
  [[nodiscard]] bool PushBehind(Message message) {
    const size_t bytes = message.ByteSizeLong();
    if (!behind_.empty() &&
        (bytes > limits_.max_bytes_behind || bytes_behind_ > limits_.max_bytes_behind - bytes)) {
      return false;
    }
    bytes_behind_ += bytes;
    behind_.push_back({std::move(message), bytes});
    return true;
  }

  struct Next {
    Message message;
    size_t bytes_behind = 0;  // Of one that all others pass: its bytes.
  };
  // The queue must not be empty.
  Next Pop() {
    const bool from_behind = messages_.empty();
    std::deque<Entry>& lane = from_behind ? behind_ : messages_;
    Entry entry = std::move(lane.front());
    lane.pop_front();
    (from_behind ? bytes_behind_ : bytes_) -= entry.bytes;
    return {.message = std::move(entry.message), .bytes_behind = from_behind ? entry.bytes : 0};
  }

  void Clear() {
    messages_.clear();
    bytes_ = 0;
    behind_.clear();
    bytes_behind_ = 0;
  }

 private:
  struct Entry {
    Message message;
    size_t bytes;
  };

  const StreamLimits limits_;
  std::deque<Entry> messages_;
  size_t bytes_ = 0;
  std::deque<Entry> behind_;
  size_t bytes_behind_ = 0;
};

}  // namespace tandem
