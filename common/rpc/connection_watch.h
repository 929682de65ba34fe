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

// What a connection has done until now.
struct ConnectionSample {
  uint64_t received_bytes = 0;  // From the peer.
  uint64_t taken_bytes = 0;     // Sent, and acknowledged by the peer.
  uint64_t unsent_bytes = 0;    // That the server wrote and the peer's window does not let go.
  // For how long, in all, there was something to send and the peer's window was closed.
  absl::Duration window_closed;
};

// Which connections are to be cut because their peers ask and do not listen: answers that are not taken wait
// in memory that gRPC does not bound, as calls that it refuses count for no stream once they are answered.
//
// A peer's debt is what it has sent while its window was closed for most of the time, less an eighth of what
// it took, a call being shorter than its answer, but hardly by more. It is forgiven when nothing waits any
// more. A peer that is slow, or has stopped, does not send meanwhile; one that reads many answers at once, as
// gRPC's clients do, has an open window.
//
// Plain logic, not thread-safe.
class UnreadOutput {
 public:
  struct Options {
    uint64_t max_debt_bytes = 0;        // Of one connection; 0: no bound.
    uint64_t max_total_debt_bytes = 0;  // Of all together.
  };
  using Id = uint64_t;

  explicit UnreadOutput(const Options& options) : options_(options) {}

  // What became of a connection in the `elapsed` since its last sample, or its first one.
  void Observe(Id connection, const ConnectionSample& sample, absl::Duration elapsed);
  // There is nothing to send on it.
  void OnNothingWaits(Id connection);
  void Forget(Id connection);
  // Takes out the connections that are to be cut: those beyond their own bound, and those with the highest
  // debts until the rest are within the bound in all.
  std::vector<Id> TakeCut();

  // How much memory this many bytes of calls can take while nobody reads what became of them: gRPC keeps some
  // 10 KB for each, and the shortest has some 16 bytes on the wire.
  static constexpr uint64_t kMemoryPerByte = 640;

 private:
  struct Peer {
    ConnectionSample last;
    uint64_t debt_bytes = 0;
  };

  const Options options_;
  std::map<Id, Peer> peers_;  // With something to send.
  uint64_t total_debt_bytes_ = 0;
};

// Watches the sockets that a Listener handed to gRPC, which owns and closes them whenever it likes: a
// descriptor is looked at only while it is still the same socket's. No descriptor and no lock is held.
//
// Not thread-safe.
class ConnectionWatch {
 public:
  // How often Look is to be called.
  static constexpr int kPeriodMs = 100;

  struct Options {
    UnreadOutput::Options unread;
    Counter cut;                           // Counts connections that were shut down.
    std::shared_ptr<PeerBackoff> backoff;  // Hears of them; null: nobody does.
  };
  explicit ConnectionWatch(const Options& options) : options_(options), unread_(options.unread) {}

  // A socket, before gRPC has it, and where its peer is.
  void Add(int descriptor, std::optional<PeerAddress> peer);
  // Looks at all of them and shuts down those that are to be cut. `elapsed` since the last time.
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
