#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls_files.h"
#include "router/http/server/http_message.h"

namespace tandem::router {

// Serves HTTP/1.1 and 1.0, with TLS if there is a certificate, on a few threads of its own that all
// connections share (Boost.Beast).
//
//   accept --> [TLS handshake] --> head --> Check --> body --> Handle --> answer --.
//                                   ^         '-- refused: answer, close           |
//                                   '-------------------- keep-alive --------------'
//
// Check and Handle are those of HttpHandler.
//
// Requests of one connection, including pipelined ones, are answered one after the other. While a request is
// being answered, the server watches the connection, so that it notices at once if the client goes away; a
// client that shuts down its sending half counts as gone. Heads and bodies are bounded in bytes and in time.
// Messages with two lengths are refused. Nothing is decompressed.
//
// Call Start, Drain and the destructor on one thread. The handler outlives the server.
class HttpServer {
 public:
  struct Options {
    std::string address;  // "host:port"; port 0 takes a free one.
    TlsFiles tls;         // Without a certificate: no TLS.
    int threads = 2;
    uint32_t max_connections = 4096;  // Further ones are closed at once.
    size_t max_head_bytes = size_t{16} << 10;
    size_t max_body_bytes = size_t{4} << 20;
    // Timeouts: for the handshake, and for a request's head from its first byte on; for its body; for the
    // client to read an answer that is sent whole; and for a connection to start its next request.
    absl::Duration head_timeout = absl::Seconds(20);
    absl::Duration body_timeout = absl::Seconds(60);
    absl::Duration answer_timeout = absl::Seconds(30);
    absl::Duration idle_timeout = absl::Minutes(10);
    // How long the destructor waits until all holders of broken exchanges have released them.
    absl::Duration farewell = absl::Seconds(5);
  };

  // Unavailable, naming the address, if it cannot be bound; InvalidArgument, naming the file, if a
  // certificate cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, HttpHandler* handler);
  // Breaks open connections, and notifies the holders of their exchanges.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  size_t num_connections() const;
  // Accepts no more connections; open ones close as soon as their current request is answered.
  void Drain();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::router
