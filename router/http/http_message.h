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
  std::string path;  // Of the target, without what follows '?'.
  std::vector<std::pair<std::string, std::string>> fields;

  // The value of a field that stands once; nothing if it is absent, "" if it stands several times.
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

// How one request is answered: by Answer, or by Begin, any number of Write, and End. Safe to use from any
// thread, and never calls back from inside. What is sent to a client that is gone goes nowhere.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void Answer(HttpAnswer answer) = 0;
  // The head of an answer whose body comes piece by piece; `head.body` is empty.
  virtual void Begin(HttpAnswer head) = 0;
  // The next piece. `done` is told when it has been handed to the network, or that it never will be; pieces
  // are sent in order, and how many wait is the caller's to bound. Without bytes `done` is all that happens.
  virtual void Write(std::string bytes, std::function<void(bool ok)> done) = 0;
  virtual void End() = 0;
  // Breaks the connection: writes fail.
  virtual void Abort() = 0;
  // Called once, on the connection's own executor, when the client is gone before the answer is out; at once
  // if it is already.
  virtual void SetOnGone(std::function<void()> on_gone) = 0;
};

// What a server does with requests. Thread-safe.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called with a request's head before its body is read. An answer refuses it: it is sent and the connection
  // is closed. `hold` is the connection's, from request to request: what is kept there is let go when it
  // closes.
  virtual std::optional<HttpAnswer> Check(const HttpHead& head, std::shared_ptr<void>& hold) = 0;
  // Answers by `exchange`, now or later.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
};

}  // namespace tandem::router
