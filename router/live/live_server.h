#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/live/live_call.h"
#include "router/state/routing_snapshot.h"

struct mg_connection;
struct mg_context;

namespace tandem::router {

// Serves the live page, over HTTP without TLS, on a port of its own:
//
//   GET /, /live.css, /live.js, /icon.svg   the page: files of router/live/page, compiled into the binary
//   GET /events                             events, as server-sent events, until the browser leaves or the
//                                           server ends
//
// Read-only: other methods are refused. On a loopback address, everybody who can connect may watch. Pages of
// other origins in a browser on this machine may not: requests must name a loopback host, and event streams
// must have the same origin. On other addresses, callers need the token of an admin tenant (HTTP basic
// authentication, any user name).
//
// Every connection uses one thread of the server's pool, so a slow browser blocks only its own thread. The
// server closes a connection whose request has not arrived within `patience`, or whose browser has read
// nothing for that time. So every kSpareThreads idle connections delay others by at most `patience`. Start
// and destroy it on one thread.
class LiveServer {
 public:
  struct Options {
    std::string address;    // "host:port"; port 0 takes a free one.
    bool insecure = false;  // Other machines may be able to connect.
    std::function<std::shared_ptr<const RoutingSnapshot>()> routing;  // Thread-safe.
    absl::Duration patience = absl::Seconds(2);                       // Whole milliseconds.
  };
  // Threads in addition to those of event streams. While fewer connections than this are idle, other requests
  // are answered at once.
  static constexpr size_t kSpareThreads = 64;
  static constexpr size_t kAnsweringThreads = 4;

  // InvalidArgument for an address that other machines can reach, without `insecure`; Unavailable, naming the
  // address, if it cannot be bound. `view` outlives the server; the server closes its feed at the end.
  static absl::StatusOr<std::unique_ptr<LiveServer>> Start(Options options, LiveView* view);
  ~LiveServer();
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

  int port() const { return port_; }

 private:
  LiveServer(Options options, LiveView* view);
  absl::Status Listen();

  // Answers a request. Catches all exceptions.
  static int OnRequest(mg_connection* connection, void* server);
  void Handle(mg_connection* connection);
  // Whether the caller may watch. If not, the caller has been sent the reason.
  bool Admit(mg_connection* connection) const;
  bool MayAdminister(const char* authorization) const;
  void StreamEvents(mg_connection* connection);
  uint64_t LastSeen(mg_connection* connection) const;

  const Options options_;
  LiveView& view_;
  const bool loopback_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace tandem::router
