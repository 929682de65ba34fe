#pragma once

#include <cstdint>
#include <functional>

#include "common/speculation/draft_messages.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {

struct LinkConditions {
  absl::Duration least_latency = absl::Microseconds(50);
  absl::Duration most_latency = absl::Milliseconds(1);
  double duplicated = 0.0;  // Share of messages that arrive twice.
  // How long until each side notices that the connection has broken, and until there is a new one.
  absl::Duration longest_notice = absl::Milliseconds(30);
  absl::Duration longest_outage = absl::Milliseconds(200);
};

// The stream between the verifier and one drafter: in order in each direction, with a varying latency. If it
// breaks, messages in flight are lost. Each side notices in its own time, and then a new connection is made.
class Link {
 public:
  struct Ends {
    // At the verifier.
    std::function<void()> on_up;
    std::function<void()> on_down;
    std::function<void(DraftResponse)> on_response;
    // At the drafter, for which every connection is another one.
    std::function<void(uint64_t connection, DraftRequest)> on_request;
    std::function<void(uint64_t connection)> on_closed;
  };
  Link(EventQueue* queue, const LinkConditions& conditions, Random random, Ends ends)
      : queue_(queue), conditions_(conditions), random_(random), ends_(std::move(ends)) {}

  void Connect();
  void Break();
  bool connected() const { return connection_ != 0; }
  // `departure`: the sender's time, not before the queue's.
  void SendRequest(absl::Time departure, DraftRequest request);
  void SendResponse(absl::Time departure, uint64_t connection, DraftResponse response);

  uint64_t num_duplicates() const { return num_duplicates_; }

 private:
  absl::Time Arrival(absl::Time departure, absl::Time* last);
  template <typename Deliver>
  void Transmit(uint64_t connection, absl::Time arrival, bool may_come_late, Deliver deliver);

  EventQueue* const queue_;
  const LinkConditions conditions_;
  Random random_;
  const Ends ends_;
  uint64_t connection_ = 0;  // 0 while there is none.
  uint64_t last_connection_ = 0;
  uint64_t verifiers_connection_ = 0;  // The one the verifier believes in.
  absl::Time last_request_ = absl::InfinitePast();
  absl::Time last_response_ = absl::InfinitePast();
  uint64_t num_duplicates_ = 0;
};

}  // namespace tandem::simulation
