#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls_files.h"
#include "router/http/http_message.h"

namespace tandem::router {

// Serves HTTP/1.1 and 1.0, with TLS where there is a certificate, on a few threads of its own for all
// connections together (Boost.Beast).
//
//   accept --> [TLS handshake] --> head --> HttpHandler::Check --> body --> HttpHandler::Handle --> answer
//   --.
//                                   ^            '-- refused: answer, close |
//                                   '------------------------- keep-alive
//                                   -----------------------------------'
//
// Requests of one connection are answered one after the other, those sent ahead (pipelining) included. While
// one is answered the connection is watched, so that a client that goes away is known at once; one that shuts
// down its sending half counts as gone. Heads and bodies are bounded in bytes and in time, messages whose
// length is told in two ways are refused, and nothing is inflated.
//
// Start, Drain and destruction belong to one thread. The handler outlives the server.
class HttpServer {
 public:
  struct Options {
    std::string address;  // "host:port"; port 0 takes a free one.
    TlsFiles tls;         // Without a certificate: no TLS.
    int threads = 2;
    uint32_t max_connections = 4096;  // Further ones are closed at once.
    size_t max_head_bytes = size_t{16} << 10;
    size_t max_body_bytes = size_t{4} << 20;
    // For the handshake and a request's head from its first byte on; for its body; for an answer that is sent
    // whole to be taken; and for a connection to begin its next request.
    absl::Duration head_timeout = absl::Seconds(20);
    absl::Duration body_timeout = absl::Seconds(60);
    absl::Duration answer_timeout = absl::Seconds(30);
    absl::Duration idle_timeout = absl::Minutes(10);
    // How long the destructor waits for those who hold an exchange to let go of it once it is broken.
    absl::Duration farewell = absl::Seconds(5);
  };

  // Unavailable, naming the address, when it cannot be bound; InvalidArgument, naming the file, when a
  // certificate cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, HttpHandler* handler);
  // Breaks what is left, and tells whoever waits for it.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  size_t num_connections() const;
  // Takes no more connections; those there are close as soon as the request they are at is answered.
  void Drain();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::router
