#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/context.hpp"
#include "router/http/server/http_message.h"
#include "router/http/server/http_server.h"

namespace tandem::router {

// What the sessions of one server share, including the executor. Each session keeps it alive; once the server
// is gone, nothing runs any more.
struct HttpShared {
  HttpShared(HttpServer::Options given, HttpHandler* serves) : options(std::move(given)), handler(*serves) {}

  const HttpServer::Options options;
  HttpHandler& handler;
  boost::asio::io_context io;
  std::atomic<bool> draining{false};
  std::atomic<bool> ended{false};  // No thread runs `io` any more.
  std::atomic<size_t> num_connections{0};
};

// One connection, from its acceptance until it closes. Owned by its pending operations.
class HttpSessionBase : public std::enable_shared_from_this<HttpSessionBase> {
 public:
  virtual ~HttpSessionBase() = default;
  virtual void Start() = 0;
  // Closes the connection if it is between two requests. Thread-safe.
  virtual void CloseIfIdle() = 0;
  // Closes the connection. Thread-safe.
  virtual void Close() = 0;
};

// `tls`: null without TLS; kept as long as the session.
std::shared_ptr<HttpSessionBase> MakeHttpSession(boost::asio::ip::tcp::socket socket,
                                                 std::shared_ptr<boost::asio::ssl::context> tls,
                                                 std::shared_ptr<HttpShared> shared);

}  // namespace tandem::router
