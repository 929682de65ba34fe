#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::router {

// A request's head. Names of fields are in lower case.
struct HttpHead {
  std::string method;
  std::string path;  // Of the target, without what follows '?'; several slashes in a row are one.
  std::vector<std::pair<std::string, std::string>> fields;

  // The value of a field that occurs once; nullopt if it is absent, "" if it occurs several times.
  std::optional<std::string> Field(absl::string_view name) const;
};

struct HttpRequest {
  HttpHead head;
  std::string body;
};

struct HttpAnswer {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> fields;  // Besides Content-Length and Connection.
  std::string body;
};

// Answers one request: by Answer, or by Begin, any number of Write, and End. Thread-safe. Never calls back
// from inside a method. Anything sent to a client that is gone is dropped.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void Answer(HttpAnswer answer) = 0;
  // Sends the head of an answer whose body follows in pieces; `head.body` is empty.
  virtual void Begin(HttpAnswer head) = 0;
  // Sends the next piece. Calls `done` when the piece has been handed to the network, or never will be.
  // Pieces are sent in order; the caller must bound how many wait. If `bytes` is empty, only calls `done`.
  virtual void Write(std::string bytes, std::function<void(bool ok)> done) = 0;
  virtual void End() = 0;
  // Breaks the connection: writes fail.
  virtual void Abort() = 0;
  // `on_gone` is called once, on the connection's executor, if the client is gone before the answer is sent;
  // at once if it is gone already.
  virtual void SetOnGone(std::function<void()> on_gone) = 0;
};

// Handles a server's requests. Thread-safe.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called with a request's head before its body is read. An answer refuses the request: the server sends it
  // and closes the connection. `hold` belongs to the connection and keeps its value from request to request,
  // until the connection closes.
  virtual std::optional<HttpAnswer> Check(const HttpHead& head, std::shared_ptr<void>& hold) = 0;
  // Answers through `exchange`, now or later.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
};

}  // namespace tandem::router
