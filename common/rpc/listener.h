#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/rpc/connection_watch.h"
#include "common/rpc/unix_socket.h"

namespace tandem {

// A server's listening sockets, and the thread that accepts connections there and hands them to gRPC. gRPC's
// own listener gives up for good at the first connection that it cannot accept, such as when the process has
// no file descriptor left; this one goes on as soon as there are some again.
//
// Descriptors for connections end before those of the process do, which has files and calls other servers. A
// connection beyond is closed at once, so that its client learns of it. One whose peer calls and does not
// read what it is answered is shut down (ConnectionWatch).
//
//   Bind --> LISTENING (connections wait) --Start--> ACCEPTING --Stop--> CLOSED
//
// Bind, Start, Stop and destruction belong to one thread; the rest may be called from any.
class Listener {
 public:
  // Of the process, for other things than connections; a quarter of all where there are few.
  static constexpr int kReservedDescriptors = 64;

  struct Options {
    // About how many connections there may be: they end where a descriptor's number would be higher than the
    // lowest that is free at the start by more than this.
    int max_connections = 0;
    // Counts those that were closed because there were too many.
    Counter refused;
    // Counts those that were closed because of watch.backoff.
    Counter refused_after_cuts;
    ConnectionWatch::Options watch;
    // Calls on a connection whose answers have not been written, frames that carry nothing, and header lists,
    // are bounded before gRPC reads them (BoundSocket), and what is cut is counted here. 0: none of them.
    uint64_t most_calls = 0;
    Counter cut_for_header_lists;
    Counter cut_for_idle_frames;
  };

  // Of "host:port"; port 0 takes a free one. Or of "unix:PATH". Unavailable, naming the address, when it
  // cannot be bound; InvalidArgument for a path that is too long.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& address);
  ~Listener();

  // `serve` gets connected sockets, which it owns, on the listener's thread.
  void Start(const Options& options, std::function<void(int)> serve);
  // Accepts nothing more and closes the sockets. `serve` is not called any more once it returns.
  void Stop();

  // 0 for a path.
  int port() const { return port_; }
  // For how long connections have been waiting that could not be accepted; zero when the last one was.
  absl::Duration deaf() const;

 private:
  Listener() = default;
  absl::Status BindPath(const std::string& path);
  absl::Status BindHost(const std::string& address);
  void Run();
  void LookAtConnections();
  // Accepts all that wait at a socket. False when there are some that cannot be accepted at the moment.
  bool AcceptAll(int socket);

  std::vector<int> sockets_;
  std::unique_ptr<UnixSocket> path_;
  int wake_ = -1;  // An eventfd that ends Run.
  int port_ = 0;
  int max_descriptor_ = 0;  // Of connections.
  std::function<void(int)> serve_;
  Options options_;
  std::optional<ConnectionWatch> watch_;  // Of the thread,
  int64_t last_look_ = 0;                 // which last looked then, in monotonic nanoseconds.
  std::atomic<int64_t> deaf_since_{0};    // Monotonic nanoseconds; 0: not.
  std::thread thread_;
};

// The most file descriptors that this process may have, which it raises from the soft to the hard limit,
// once. Logs what it found, and warns where it is too low for many connections.
int RaiseDescriptorLimit();

}  // namespace tandem
