#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/rpc/unix_socket.h"

namespace tandem {

// A server's listening sockets, and the thread that accepts connections and passes them to gRPC. gRPC's own
// listener stops for good at the first connection that it cannot accept, for example because the process has
// no file descriptors left. This one continues as soon as there are some again.
//
// Connections may use only part of the process's descriptors, because it needs others for files and for calls
// to other servers. A further connection is closed at once, so that its client notices.
//
//   Bind --> LISTENING (connections wait) --Start--> ACCEPTING --Stop--> CLOSED
//
// Call Bind, Start, Stop and the destructor on one thread. All other methods are thread-safe.
class Listener {
 public:
  // Descriptors of the process that connections may not use; a quarter of all if there are few.
  static constexpr int kReservedDescriptors = 64;

  struct Options {
    // About how many connections are allowed: a descriptor's number may exceed the lowest free one at the
    // start by at most this.
    int max_connections = 0;
    // Counts connections closed because there were too many.
    Counter refused;
  };

  // Binds "host:port", where port 0 takes a free one, or "unix:PATH". Unavailable, naming the address, if it
  // cannot be bound; InvalidArgument for a path that is too long.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& address);
  ~Listener();

  // `serve` gets connected sockets, which it owns, on the listener's thread.
  void Start(const Options& options, std::function<void(int)> serve);
  // Stops accepting and closes the sockets. `serve` is not called after this returns.
  void Stop();

  // 0 for a path.
  int port() const { return port_; }
  // How long connections have been waiting that could not be accepted; zero if the last one could.
  absl::Duration deaf() const;

 private:
  Listener() = default;
  absl::Status BindPath(const std::string& path);
  absl::Status BindHost(const std::string& address);
  void Run();
  // Accepts all waiting connections of a socket. False if some cannot be accepted at the moment.
  bool AcceptAll(int socket);

  std::vector<int> sockets_;
  std::unique_ptr<UnixSocket> path_;
  int wake_ = -1;  // An eventfd that ends Run.
  int port_ = 0;
  int max_descriptor_ = 0;  // Of connections.
  std::function<void(int)> serve_;
  Options options_;
  std::atomic<int64_t> deaf_since_{0};  // Monotonic nanoseconds; 0: not.
  std::thread thread_;
};

// Raises the limit of file descriptors of this process from the soft to the hard limit, once, and returns it.
// Logs the limit, and warns if it is too low for many connections.
int RaiseDescriptorLimit();

}  // namespace tandem
