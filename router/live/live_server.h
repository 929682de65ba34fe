#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/http/server/http_message.h"
#include "router/http/server/http_server.h"
#include "router/live/live_call.h"
#include "router/state/routing_snapshot.h"

namespace tandem::router {

// Serves the live page, over HTTP without TLS, on an address of its own:
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
// One thread writes to all event streams, each at its own pace; it never waits for a browser. A connection
// ends if its request has not arrived within `patience`, if it asks for nothing for that time, or if its
// browser has not read what was written for five times that. Start and destroy it on one thread.
class LiveServer final : private HttpHandler {
 public:
  struct Options {
    std::string address;              // "host:port"; port 0 takes a free one.
    bool insecure = false;            // Other machines may be able to connect.
    uint32_t max_connections = 4096;  // HttpServer's.
    std::function<std::shared_ptr<const RoutingSnapshot>()> routing;  // Thread-safe.
    absl::Duration patience = absl::Seconds(2);                       // Whole milliseconds.
  };

  // InvalidArgument for an address that other machines can reach, without `insecure`, or that has no port;
  // Unavailable, naming the address, if it cannot be bound. `view` outlives the server; the server closes its
  // feed at the end.
  static absl::StatusOr<std::unique_ptr<LiveServer>> Start(Options options, LiveView* view);
  ~LiveServer() override;
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

  int port() const { return http_->port(); }

 private:
  struct Stream;

  LiveServer(Options options, LiveView* view);

  std::optional<HttpAnswer> Check(const HttpHead& head, std::shared_ptr<void>& hold) override;
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  // The reason why the caller may not watch, if so.
  std::optional<HttpAnswer> Refuse(const HttpHead& head) const;
  bool MayAdminister(absl::string_view authorization) const;
  void BeginStream(const HttpHead& head, std::shared_ptr<HttpExchange> exchange);
  uint64_t LastSeen(const HttpHead& head) const;

  // The thread of the streams.
  void WriteToStreams();
  // Writes what there is to say. False if the stream is over.
  bool WriteTo(Stream& stream, absl::Time now);
  std::string NextOf(Stream& stream, absl::Time now);

  const Options options_;
  LiveView& view_;
  const bool loopback_;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> ending_{false};
  std::thread writer_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace tandem::router
