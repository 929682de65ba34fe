#include "router/http/server/http_server.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/testing/http_connection.h"

namespace tandem::router {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::HttpConnection;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Echoes a request's body, but for some paths: /secret is refused by its head, /keep keeps the exchange for
// the test, and /pieces answers piece by piece.
class EchoHandler final : public HttpHandler {
 public:
  std::optional<HttpAnswer> Check(const HttpHead& head, std::shared_ptr<void>& hold) override {
    if (hold == nullptr) hold = std::make_shared<Counted>(*this);
    if (head.path == "/secret") return HttpAnswer{.status = 401, .body = "no"};
    return std::nullopt;
  }

  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    ++handled;
    if (request.head.path == "/keep") {
      absl::MutexLock lock(&mutex);
      kept.push_back(std::move(exchange));
      return;
    }
    if (request.head.path == "/pieces") {
      exchange->Begin({.fields = {{"Content-Type", "text/plain"}}});
      exchange->Write("one", [](bool) {});
      exchange->Write("", [](bool) {});
      exchange->Write("three", [](bool) {});
      return exchange->End();
    }
    exchange->Answer({.body = absl::StrCat("[", request.body, "]")});
  }

  std::shared_ptr<HttpExchange> NextKept() {
    absl::MutexLock lock(&mutex);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !kept.empty(); };
    if (!mutex.AwaitWithTimeout(absl::Condition(&some), absl::Seconds(30))) return nullptr;
    std::shared_ptr<HttpExchange> next = std::move(kept.front());
    kept.pop_front();
    return next;
  }

  struct Counted {
    explicit Counted(EchoHandler& of) : handler(of) { ++handler.held; }
    ~Counted() { --handler.held; }
    EchoHandler& handler;
  };

  std::atomic<int> handled{0};
  std::atomic<int> held{0};
  absl::Mutex mutex;
  std::deque<std::shared_ptr<HttpExchange>> kept ABSL_GUARDED_BY(mutex);
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServer::Options options = {}) {
    options.address = "127.0.0.1:0";
    server_ = HttpServer::Start(std::move(options), &handler_).value();
  }
  std::string Ask(const std::string& request) { return HttpConnection(server_->port(), request).ReadAll(); }
  // Waits until the server has closed all connections.
  bool AllClosed() {
    for (const absl::Time end = absl::Now() + absl::Seconds(30); server_->num_connections() > 0;) {
      if (absl::Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  EchoHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

std::string Post(const std::string& path, const std::string& body, const std::string& fields = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: a\r\nContent-Length: ", body.size(), "\r\n", fields,
                      "\r\n", body);
}

constexpr char kGet[] = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
constexpr char kLastGet[] = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

TEST_F(HttpServerTest, AnswersRequestsOfOneConnectionInOrder) {
  Start();
  HttpConnection connection(server_->port());
  for (const std::string body : {"first", "second"}) {
    ASSERT_TRUE(connection.Send(Post("/x", body)));
    const std::string answer = connection.ReadUntil("]");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Connection: keep-alive\r\n"));
    EXPECT_THAT(answer, HasSubstr(absl::StrCat("[", body, "]")));
  }
}

TEST_F(HttpServerTest, RequestsSentAheadAreAnsweredOneAfterTheOther) {
  Start();
  HttpConnection connection(server_->port(),
                            Post("/keep", "") + Post("/x", "b") + Post("/x", "c") + kLastGet);
  const std::shared_ptr<HttpExchange> first = handler_.NextKept();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(handler_.handled, 1) << "a request was served before the one before it was answered";
  first->Answer({.body = "a"});
  const std::string answers = connection.ReadAll();
  EXPECT_LT(answers.find("\r\n\r\na"), answers.find("[b]"));
  EXPECT_LT(answers.find("[b]"), answers.find("[c]"));
  EXPECT_LT(answers.find("[c]"), answers.find("[]"));
}

TEST_F(HttpServerTest, PiecesAreChunksOrEndWithTheConnection) {
  Start();
  const std::string chunked = Ask("GET /pieces HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(chunked, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(chunked, HasSubstr("\r\n\r\n3\r\none\r\n5\r\nthree\r\n0\r\n\r\n"));
  const std::string old = Ask("GET /pieces HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old, Not(HasSubstr("chunked")));
  EXPECT_THAT(old, HasSubstr("\r\n\r\nonethree"));
}

TEST_F(HttpServerTest, ABodyIsNotReadBeforeItsHeadIsLookedAt) {
  Start();
  HttpConnection connection(server_->port(),
                            "POST /secret HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  const std::string answer = connection.ReadAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_EQ(handler_.handled, 0);
  EXPECT_TRUE(AllClosed());
  // A client that sends its body all the same still hears why.
  EXPECT_THAT(Ask(Post("/secret", std::string(100'000, 'x'))), HasSubstr("no"));
}

TEST_F(HttpServerTest, AClientThatAsksFirstIsToldToContinue) {
  Start();
  HttpConnection connection(
      server_->port(), "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(connection.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(connection.Send("hi"));
  EXPECT_THAT(connection.ReadUntil("]"), HasSubstr("[hi]"));
}

TEST_F(HttpServerTest, WhatIsTooLargeIsRefused) {
  Start({.max_head_bytes = 1024, .max_body_bytes = 100});
  EXPECT_THAT(Ask(Post("/x", std::string(101, 'x'))), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Ask(Post("/x", std::string(100, 'x'), "Connection: close\r\n")), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask(absl::StrCat("GET /x HTTP/1.1\r\nHost: a\r\nLong: ", std::string(2000, 'x'), "\r\n\r\n")),
              StartsWith("HTTP/1.1 431 "));
  // In pieces, whose sum nobody tells beforehand.
  EXPECT_THAT(Ask(absl::StrCat("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n",
                               std::string(101, 'x'), "\r\n0\r\n\r\n")),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_EQ(handler_.handled, 1);
}

// Whatever the server itself says is JSON, in OpenAI's format.
TEST_F(HttpServerTest, RefusalsAreJson) {
  Start({.max_head_bytes = 1024, .max_body_bytes = 100});
  const std::pair<std::string, std::string> kRefused[] = {
      {Post("/x", std::string(101, 'x')), "413 body_too_large"},
      {absl::StrCat("GET /x HTTP/1.1\r\nHost: a\r\nLong: ", std::string(2000, 'x'), "\r\n\r\n"),
       "431 head_too_large"},
      {"nonsense\r\n\r\n", "400 malformed_request"},
      {"GET /x HTTP/1.1\r\n\r\n", "400 malformed_request"},
      {"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "501 unsupported_transfer_encoding"},
      {"POST /x HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
       "415 unsupported_content_encoding"},
  };
  for (const auto& [request, expected] : kRefused) {
    const std::string answer = Ask(request);
    EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n")) << request;
    const nlohmann::json body =
        nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n") + 4), nullptr, false);
    ASSERT_TRUE(body.is_object()) << answer;
    const nlohmann::json& error = body["error"];
    EXPECT_EQ(absl::StrCat(answer.substr(9, 3), " ", error["code"].get<std::string>()), expected);
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_FALSE(error["message"].get<std::string>().empty());
    EXPECT_TRUE(error["param"].is_null());
  }
}

// Proxies send the whole address.
TEST_F(HttpServerTest, ATargetMayBeAWholeAddress) {
  Start();
  for (const char* target : {"/secret", "/secret?a=b", "http://a/secret", "HTTPS://a:8080/secret?/x"}) {
    EXPECT_THAT(Ask(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")),
                StartsWith("HTTP/1.1 401 "))
        << target;
  }
  for (const char* target : {"http://a", "http://secret", "/http://a/secret"}) {
    EXPECT_THAT(Ask(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")),
                StartsWith("HTTP/1.1 200 "))
        << target;
  }
}

TEST_F(HttpServerTest, WhatCanBeReadInTwoWaysIsRefused) {
  // Whatever else it waits for does not come.
  Start({.head_timeout = absl::Seconds(1), .body_timeout = absl::Seconds(1)});
  const std::vector<std::string> requests = {
      // Two lengths, and a length beside pieces.
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabcdef",
      // Encodings that hide where a body ends.
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\nabc",
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
      "chunked\r\n\r\n0\r\n\r\n",
      "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
      // Pieces whose lengths are none.
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\nffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
      // No host, two hosts, a field with a blank before the colon, a line that goes on, another protocol.
      "GET /x HTTP/1.1\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
      "GET /x HTTP/1.1\r\nHost : a\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "nonsense\r\n\r\n",
      std::string("GET /x HTTP/1.1\r\nHost: a\r\nBad: \0\r\n\r\n", 36),
  };
  for (const std::string& request : requests) {
    // What follows on the connection must not be served, whatever it was taken for.
    const std::string answer = Ask(request + kGet);
    if (!answer.empty()) {
      EXPECT_THAT(answer, AnyOf(StartsWith("HTTP/1.1 4"), StartsWith("HTTP/1.1 501"))) << request;
    }
    EXPECT_THAT(answer.substr(std::min<size_t>(answer.size(), 10)), Not(HasSubstr("HTTP/1.1"))) << request;
  }
  EXPECT_EQ(handler_.handled, 0);
  EXPECT_TRUE(AllClosed());
}

TEST_F(HttpServerTest, SlowConnectionsAreClosed) {
  Start({.head_timeout = absl::Milliseconds(50),
         .body_timeout = absl::Milliseconds(50),
         .idle_timeout = absl::Milliseconds(100)});
  EXPECT_THAT(Ask(""), IsEmpty());
  // Who has begun is told why.
  for (const char* begun : {"GET /x HT", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab"}) {
    const std::string answer = Ask(begun);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 ")) << begun;
    EXPECT_THAT(answer, HasSubstr(R"("code":"request_timeout"}})")) << begun;
  }
  EXPECT_TRUE(AllClosed());
  EXPECT_EQ(handler_.handled, 0);
}

TEST_F(HttpServerTest, AClientThatTakesNothingIsLetGo) {
  Start({.answer_timeout = absl::Milliseconds(100)});
  HttpConnection connection(server_->port(), Post("/keep", ""));
  handler_.NextKept()->Answer({.body = std::string(64 << 20, 'x')});
  EXPECT_TRUE(AllClosed());
}

TEST_F(HttpServerTest, AClientThatGoesAwayIsKnownAtOnce) {
  Start();
  HttpConnection connection(server_->port(), Post("/keep", ""));
  const std::shared_ptr<HttpExchange> exchange = handler_.NextKept();
  absl::Notification gone;
  exchange->SetOnGone([&gone] { gone.Notify(); });
  connection.Close();
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(absl::Seconds(30)));
  // What is still sent goes nowhere, and whoever sends is told.
  absl::Notification failed;
  exchange->Begin({});
  exchange->Write("x", [&failed](bool ok) {
    EXPECT_FALSE(ok);
    failed.Notify();
  });
  EXPECT_TRUE(failed.WaitForNotificationWithTimeout(absl::Seconds(30)));
  absl::Notification late;
  exchange->SetOnGone([&late] { late.Notify(); });
  EXPECT_TRUE(late.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_TRUE(AllClosed());
  EXPECT_EQ(handler_.held, 0);
}

TEST_F(HttpServerTest, AnExchangeIsOfNoUseOnceItIsAnswered) {
  Start();
  HttpConnection connection(server_->port(), Post("/keep", "") + Post("/keep", ""));
  const std::shared_ptr<HttpExchange> first = handler_.NextKept();
  first->Answer({.body = "a"});
  connection.ReadUntil("\r\n\r\na");
  const std::shared_ptr<HttpExchange> second = handler_.NextKept();
  // Late words of the first must not become part of the second's answer.
  first->Answer({.body = "wrong"});
  first->Write("wrong", [](bool ok) { EXPECT_FALSE(ok); });
  first->Abort();
  second->Answer({.body = "b"});
  EXPECT_THAT(connection.ReadUntil("\r\n\r\nb"), Not(HasSubstr("wrong")));
}

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitAreClosed) {
  Start({.max_connections = 2});
  HttpConnection first(server_->port(), kGet);
  first.ReadUntil("[]");
  HttpConnection second(server_->port(), kGet);
  second.ReadUntil("[]");
  EXPECT_THAT(Ask(kGet), IsEmpty());
  first.Close();
  second.Close();
  ASSERT_TRUE(AllClosed());
  EXPECT_THAT(Ask(kLastGet), HasSubstr("[]"));
}

TEST_F(HttpServerTest, ADrainAnswersWhatHasBegunAndTakesNothingNew) {
  Start();
  HttpConnection idle(server_->port(), kGet);
  idle.ReadUntil("[]");
  HttpConnection busy(server_->port(), Post("/keep", "") + kGet);
  const std::shared_ptr<HttpExchange> exchange = handler_.NextKept();
  server_->Drain();
  EXPECT_THAT(idle.ReadAll(), IsEmpty());
  exchange->Answer({.body = "done"});
  const std::string answer = busy.ReadAll();
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, HasSubstr("done"));
  EXPECT_THAT(answer, Not(HasSubstr("[]")));
  EXPECT_TRUE(AllClosed());
}

TEST_F(HttpServerTest, ItsEndTellsThoseWhoAreBeingServed) {
  Start({.farewell = absl::Milliseconds(10)});
  HttpConnection connection(server_->port(), Post("/keep", ""));
  const std::shared_ptr<HttpExchange> exchange = handler_.NextKept();
  absl::Notification gone;
  exchange->SetOnGone([&gone] { gone.Notify(); });
  server_.reset();
  EXPECT_TRUE(gone.HasBeenNotified());
  // Whoever still holds on to it does no harm.
  exchange->Answer({.body = "late"});
}

}  // namespace
}  // namespace tandem::router
