#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/rpc/peer_backoff.h"

namespace tandem {

// The totals of a connection.
struct ConnectionSample {
  uint64_t received_bytes = 0;  // From the peer.
  uint64_t taken_bytes = 0;     // Sent, and acknowledged by the peer.
  uint64_t unsent_bytes = 0;    // That the server wrote and the peer's window does not let go.
  // The total time during which there was something to send and the peer's window was closed.
  absl::Duration window_closed;
  // Times in a row that the kernel has waited in vain for the peer, each time twice as long as before: for an
  // acknowledgement of bytes that it then sends again, or for a window.
  uint32_t backoffs = 0;
};

// Decides which connections to cut because their peers send calls and do not read the answers. Unread answers
// wait in memory that gRPC does not bound, because refused calls do not count as streams once they are
// answered.
//
// A peer's debt is the number of bytes that it sent while its window was closed for most of the time, or
// while it acknowledged nothing, less an eighth of the bytes that it read (an answer is hardly more than
// eight times as long as its call). The debt ends when nothing waits any more. Honest peers have no debt: a
// slow or stopped peer does not send meanwhile, and a peer that reads many answers at once, like gRPC's
// clients, has an open window.
//
// A peer acknowledges nothing if it has let two repetitions pass since it was heard. One may come late: after
// an outage the kernel waits for seconds before it repeats, while the peer sends what it has.
//
// Plain logic. Not thread-safe.
class UnreadOutput {
 public:
  struct Options {
    uint64_t max_debt_bytes = 0;        // Of one connection; 0: no bound.
    uint64_t max_total_debt_bytes = 0;  // Of all together.
  };
  using Id = uint64_t;

  explicit UnreadOutput(const Options& options) : options_(options) {}

  // A new sample of a connection, `elapsed` after the previous one.
  void Observe(Id connection, const ConnectionSample& sample, absl::Duration elapsed);
  // Nothing waits on the connection.
  void OnNothingWaits(Id connection);
  void Forget(Id connection);
  // Removes and returns the connections to cut: those beyond their own bound, and those with the highest
  // debts until the others are within the total bound.
  std::vector<Id> TakeCut();

  // Memory per byte of calls whose answers nobody reads: gRPC keeps some 10 KB for each call, and the
  // shortest call has some 16 bytes on the wire.
  static constexpr uint64_t kMemoryPerByte = 640;

 private:
  struct Peer {
    ConnectionSample last;
    uint64_t debt_bytes = 0;
    // The backoffs when the peer was first heard since it acknowledged something.
    std::optional<uint32_t> heard_at;
  };

  const Options options_;
  std::map<Id, Peer> peers_;  // With something to send.
  uint64_t total_debt_bytes_ = 0;
};

// Watches the sockets that a Listener passed to gRPC. gRPC owns them and may close them at any time, so a
// descriptor is used only while it still belongs to the same socket. Holds no descriptors and no locks.
//
// Not thread-safe.
class ConnectionWatch {
 public:
  // How often to call Look.
  static constexpr int kPeriodMs = 100;

  struct Options {
    UnreadOutput::Options unread;
    Counter cut;                           // Counts connections that were shut down.
    std::shared_ptr<PeerBackoff> backoff;  // Learns of cut connections; may be null.
  };
  explicit ConnectionWatch(const Options& options) : options_(options), unread_(options.unread) {}

  // Adds a socket, with its peer's address, before gRPC gets it.
  void Add(int descriptor, std::optional<PeerAddress> peer);
  // Samples all sockets, and shuts down those to cut. `elapsed`: since the last call.
  void Look(absl::Duration elapsed);
  bool empty() const { return watched_.empty(); }

 private:
  const Options options_;
  struct Watched {
    uint64_t cookie = 0;  // The socket's.
    std::optional<PeerAddress> peer;
  };
  std::map<int, Watched> watched_;  // By descriptor.
  UnreadOutput unread_;
};

}  // namespace tandem
