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
//   GET /             the page, and /live.css, /live.js, /icon.svg: files of router/live/page that are part
//   of the binary GET /events       what happens, as server-sent events, until the browser leaves or the
//   server ends
//
// Read-only: other methods are refused. On a loopback address whoever can connect may watch, except through a
// page of another origin in a browser here: calls have to name a loopback host, and event streams may not be
// opened from elsewhere. On other addresses callers show the token of a tenant that is an admin (HTTP basic
// authentication, any user name).
//
// Every connection has a thread of the server's own pool while it lasts; a browser that reads slowly holds up
// its own thread only. A caller whose request has not come within `patience` is hung up on, and so is a
// browser that has taken nothing for as long, so that connections without a request keep others out for no
// longer than that, for each kSpareThreads of them. Start and destruction belong to one thread.
class LiveServer {
 public:
  struct Options {
    std::string address;    // "host:port"; port 0 takes a free one.
    bool insecure = false;  // Other machines may be able to connect.
    std::function<std::shared_ptr<const RoutingSnapshot>()> routing;  // Thread-safe.
    absl::Duration patience = absl::Seconds(2);                       // Whole milliseconds.
  };
  // Threads besides those of event streams: as many connections can be idle at once, and others are still
  // answered at once, by these.
  static constexpr size_t kSpareThreads = 64;
  static constexpr size_t kAnsweringThreads = 4;

  // InvalidArgument for an address that others can reach without `insecure`; Unavailable, naming the address,
  // when it cannot be bound. `view` outlives the server, which closes its feed in the end.
  static absl::StatusOr<std::unique_ptr<LiveServer>> Start(Options options, LiveView* view);
  ~LiveServer();
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

  int port() const { return port_; }

 private:
  LiveServer(Options options, LiveView* view);
  absl::Status Listen();

  // Answers a request; nothing it throws leaves it.
  static int OnRequest(mg_connection* connection, void* server);
  void Handle(mg_connection* connection);
  // Whether the caller may watch; otherwise it has been told why not.
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
