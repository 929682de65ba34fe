#include "router/live/live_server.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/live/page.h"
#include "router/testing/http_connection.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Connection = testing::HttpConnection;

// Only a test that fails waits as long.
constexpr int kPatienceSeconds = 30;

v1::RouterConfig TwoTenants() {
  v1::RouterConfig config;
  v1::TargetModelConfig& model = *config.add_models();
  model.set_name("letters");
  model.set_folder("unused");
  model.add_verifiers("verifier:7002");
  for (const bool admin : {true, false}) {
    v1::TenantConfig& tenant = *config.add_tenants();
    tenant.set_name(admin ? "ops" : "acme");
    tenant.set_token(admin ? "ops-token" : "acme-token");
    tenant.set_admin(admin);
  }
  return config;
}

class LiveServerTest : public ::testing::Test {
 protected:
  void Serve(const LiveFeed::Options& options = {}, const std::string& address = "127.0.0.1:0",
             absl::Duration patience = absl::Seconds(2)) {
    view_ = std::make_unique<LiveView>(options, "instance");
    auto routing = std::make_shared<const RoutingSnapshot>(ResolveConfig(TwoTenants()).value(), 1);
    auto server = LiveServer::Start({.address = address,
                                     .insecure = true,
                                     .routing = [routing] { return routing; },
                                     .patience = patience},
                                    view_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_GT(server_->port(), 0);
  }

  std::string Request(const std::string& path, const std::string& headers = "",
                      const std::string& method = "GET", const std::string& host = "localhost") const {
    return absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", host, "\r\nConnection: close\r\n", headers,
                        "\r\n");
  }
  std::string Ask(const std::string& path, const std::string& headers = "", const std::string& method = "GET",
                  const std::string& host = "localhost") const {
    return Connection(server_->port(), Request(path, headers, method, host)).ReadAll();
  }
  std::unique_ptr<Connection> Watch(const std::string& headers = "") const {
    return std::make_unique<Connection>(server_->port(), Request("/events", headers));
  }

  std::unique_ptr<LiveView> view_;
  std::unique_ptr<LiveServer> server_;
};

std::string Basic(const std::string& token) {
  return absl::StrCat("Authorization: Basic ", absl::Base64Escape(absl::StrCat("me:", token)), "\r\n");
}

TEST_F(LiveServerTest, ServesThePageAndNothingElse) {
  Serve();
  for (const PageFile& file : kPageFiles) {
    const std::string answer = Ask(std::string(file.path));
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK\r\n")) << file.path;
    EXPECT_THAT(answer, HasSubstr(absl::StrCat("Content-Type: ", file.type, "\r\n")));
    EXPECT_TRUE(absl::EndsWith(answer, absl::StrCat("\r\n\r\n", file.content)));
    EXPECT_TRUE(absl::EndsWith(Ask(std::string(file.path), "", "HEAD"), "\r\n\r\n")) << "no body";
  }
  EXPECT_THAT(Ask("/"), HasSubstr("<!doctype html>"));
  for (const char* path :
       {"/other", "/index.html", "/../etc/passwd", "/%2e%2e/etc/passwd", "/live.js/", "/events/x"}) {
    EXPECT_THAT(Ask(path), Not(HasSubstr(" 200 "))) << path;
  }
}

// The page loads nothing from elsewhere, and says so to browsers.
TEST_F(LiveServerTest, EveryAnswerForbidsWhatThePageDoesNotNeed) {
  Serve();
  auto events = Watch();
  for (const std::string& answer : {Ask("/"), Ask("/live.js"), Ask("/nothing"), Ask("/", "", "POST"),
                                    Ask("/", "", "GET", "evil.example"), events->ReadUntil("hello")}) {
    EXPECT_THAT(answer,
                HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
                          "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
                          "frame-ancestors 'none'\r\n"));
    EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
    EXPECT_THAT(answer, HasSubstr("Cache-Control: no-store\r\n"));
    EXPECT_THAT(answer, HasSubstr("X-Frame-Options: DENY\r\n"));
    EXPECT_THAT(answer, Not(HasSubstr("Access-Control-")));
  }
  for (const PageFile& file : kPageFiles) {
    EXPECT_THAT(std::string(file.content), Not(HasSubstr("https:"))) << file.path;
    EXPECT_THAT(std::string(file.content), Not(HasSubstr("innerHTML"))) << file.path;
    EXPECT_THAT(std::string(file.content), Not(HasSubstr(" style="))) << file.path;
  }
}

TEST_F(LiveServerTest, CanOnlyBeRead) {
  Serve();
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"}) {
    EXPECT_THAT(Ask("/events", "Content-Length: 0\r\n", method), HasSubstr(" 405 ")) << method;
  }
  // What a browser asks before it lets another origin's page in.
  const std::string preflight =
      Ask("/events", "Origin: http://evil.example\r\nAccess-Control-Request-Method: GET\r\n", "OPTIONS");
  EXPECT_THAT(preflight, Not(HasSubstr("Access-Control-Allow")));
}

// A name server may say of any name that it is this machine.
TEST_F(LiveServerTest, OnLoopbackOnlyItsOwnNamesOpenIt) {
  Serve();
  for (const char* host : {"localhost", "localhost:80", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:80"}) {
    EXPECT_THAT(Ask("/", "", "GET", host), HasSubstr(" 200 OK")) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:80", "localhost.evil.example", "unix", "unix:80", "10.0.0.1", ""}) {
    EXPECT_THAT(Ask("/", "", "GET", host), Not(HasSubstr(" 200 OK"))) << host;
  }
  EXPECT_THAT(Ask("/events", "Sec-Fetch-Site: cross-site\r\n"), HasSubstr(" 403 "));
  EXPECT_THAT(Watch("Sec-Fetch-Site: same-origin\r\n")->ReadUntil("hello"), HasSubstr(" 200 OK"));
}

TEST_F(LiveServerTest, ElsewhereItAsksForAnAdminsToken) {
  Serve({}, "0.0.0.0:0");
  for (const std::string& headers :
       {std::string(), Basic("wrong"), Basic(""), Basic("acme-token"),
        std::string("Authorization: Bearer ops-token\r\n"), std::string("Authorization: Basic ops-token\r\n"),
        std::string("Authorization: Basic %%%\r\n")}) {
    for (const char* path : {"/", "/events", "/live.js", "/nothing"}) {
      const std::string answer = Ask(path, headers);
      EXPECT_THAT(answer, HasSubstr(" 401 ")) << path << " " << headers;
      EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Basic realm="));
    }
  }
  EXPECT_THAT(Ask("/", Basic("ops-token"), "GET", "router.example"), HasSubstr(" 200 OK"));
  EXPECT_THAT(Watch(Basic("ops-token"))->ReadUntil("hello"), HasSubstr(" 200 OK"));
}

TEST_F(LiveServerTest, TellsEventsAsTheyCome) {
  Serve({.all_requests = true});
  auto browser = Watch();
  const std::string first = browser->ReadUntil(R"("tenant":"ops")");
  EXPECT_THAT(first, HasSubstr("Content-Type: text/event-stream; charset=utf-8\r\n"));
  EXPECT_THAT(first, HasSubstr(R"(data: {"instance":"instance","all":true,"prompts":false})"));
  EXPECT_THAT(first, HasSubstr("event: tenants\ndata: {\"more\":0,"));
  ASSERT_TRUE(view_->feed.Wanted(false));
  view_->feed.Publish("round", "{\"n\":1}");
  EXPECT_THAT(browser->ReadUntil("{\"n\":1}\n\n"),
              HasSubstr("event: round\nid: instance-1\ndata: {\"n\":1}\n\n"));
  // The table follows.
  view_->tallies.OnBegun("acme");
  EXPECT_THAT(browser->ReadUntil("\"running\":1"), HasSubstr("event: tenants"));
  // While nothing happens there is a sign of life.
  EXPECT_THAT(browser->ReadUntil("event: beat"), HasSubstr("event: beat"));
}

TEST_F(LiveServerTest, ABrowserThatComesBackGoesOn) {
  Serve();
  for (int i = 1; i <= 3; ++i) view_->feed.Publish("round", absl::StrCat("{\"n\":", i, "}"));
  const std::string rest = Watch("Last-Event-ID: instance-2\r\n")->ReadUntil("\"n\":3}");
  EXPECT_THAT(rest, Not(HasSubstr("\"n\":2}")));
  for (const char* id :
       {"other-2", "instance-", "instance-x", "instance--1", "2", "instance-99999999999999999999999"}) {
    const std::string all = Watch(absl::StrCat("Last-Event-ID: ", id, "\r\n"))->ReadUntil("\"n\":3}");
    EXPECT_THAT(all, HasSubstr("\"n\":1}")) << id;
  }
}

TEST_F(LiveServerTest, OneTooManyIsToldWhy) {
  Serve({.max_watchers = 2});
  auto first = Watch();
  auto second = Watch();
  first->ReadUntil("hello");
  second->ReadUntil("hello");
  const std::string third = Ask("/events");
  EXPECT_THAT(third, HasSubstr(" 503 "));
  EXPECT_THAT(third, HasSubstr("Retry-After: 5\r\n"));
  EXPECT_THAT(third, HasSubstr("too many browsers watch already (the limit is 2)"));
  EXPECT_THAT(Ask("/"), HasSubstr(" 200 OK")) << "the page itself can be had";
  // A place is free again once the server has noticed that one is gone.
  first->Close();
  std::string answer;
  for (int i = 0; i < 10 * kPatienceSeconds && !absl::StrContains(answer, "hello"); ++i) {
    answer = Watch()->ReadUntil("\n\n");
    if (!absl::StrContains(answer, "hello")) second->ReadUntil("event: beat");  // A second passes.
  }
  EXPECT_THAT(answer, HasSubstr("hello"));
}

// While it reads nothing, many events happen. Other browsers go on, and it learns how many it lost.
TEST_F(LiveServerTest, ASlowBrowserLosesEventsAndHoldsUpNobody) {
  Serve({.max_bytes = 1 << 20}, "127.0.0.1:0", absl::Seconds(kPatienceSeconds));
  auto slow = Watch();
  slow->ReadUntil("event: tenants");
  auto quick = Watch();
  quick->ReadUntil("event: tenants");
  const std::string filling(16 << 10, 'x');
  for (int i = 0; i < 2000; ++i) {
    view_->feed.Publish("round", absl::StrCat("\"", filling, "\""));
    view_->feed.Publish("round", absl::StrCat("\"mark", i, ".\""));
    const std::string mark = absl::StrCat("mark", i, ".");
    ASSERT_THAT(quick->ReadUntil(mark), HasSubstr(mark));
  }
  EXPECT_THAT(slow->ReadUntil("event: gap"), HasSubstr("event: gap"));
  EXPECT_THAT(slow->ReadUntil("mark1999."), HasSubstr("mark1999."));
}

TEST_F(LiveServerTest, ItsEndEndsEverything) {
  Serve();
  auto browser = Watch();
  browser->ReadUntil("event: tenants");
  view_->feed.Publish("round", "{\"n\":1}");
  server_.reset();
  const std::string rest = browser->ReadAll();
  EXPECT_THAT(rest, HasSubstr("{\"n\":1}"));
  EXPECT_TRUE(absl::EndsWith(rest, "event: bye\ndata: {}\n\n\r\n0\r\n\r\n")) << rest;
}

TEST_F(LiveServerTest, HostileRequestsHurtNobody) {
  Serve();
  std::vector<std::unique_ptr<Connection>> halves;
  for (const std::string& request :
       {std::string("GET / HT"), std::string("\r\n\r\n"), std::string(100000, 'a'),
        std::string("GET /\0x HTTP/1.1\r\n\r\n", 20), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")}) {
    // The server may hang up before it has all of it.
    halves.push_back(std::make_unique<Connection>(server_->port(), ""));
    halves.back()->Send(request);
  }
  EXPECT_THAT(Ask("/"), HasSubstr(" 200 OK"));
  EXPECT_THAT(halves[4]->ReadAll(), HasSubstr(" 400 ")) << "without a host";
}

// Browsers open connections ahead of requests, and others may do so to keep everybody out.
TEST_F(LiveServerTest, IdleConnectionsKeepNobodyOutAndAreHungUpOn) {
  Serve();
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<Connection>(server_->port(), "GET "));
  const absl::Time start = absl::Now();
  EXPECT_THAT(Ask("/"), HasSubstr(" 200 OK"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(kPatienceSeconds / 2));
  EXPECT_THAT(idle.front()->ReadAll(), HasSubstr(" 408 "));
}

// A browser that reads nothing while there is much to say is cut.
TEST_F(LiveServerTest, ABrowserThatStopsReadingIsHungUpOn) {
  Serve({.max_bytes = 1 << 20}, "127.0.0.1:0", absl::Milliseconds(100));
  auto stopped = Watch();
  stopped->ReadUntil("event: tenants");
  const std::string filling(16 << 10, 'x');
  const absl::Time deadline = absl::Now() + absl::Seconds(kPatienceSeconds);
  while (view_->feed.num_watchers() > 0 && absl::Now() < deadline) {
    view_->feed.Publish("round", absl::StrCat("\"", filling, "\""));
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(view_->feed.num_watchers(), 0u);
}

// A byte now and then is no request either.
TEST_F(LiveServerTest, ADrippingCallerIsHungUpOn) {
  Serve();
  Connection dripping(server_->port(), "GET /");
  const absl::Time deadline = absl::Now() + absl::Seconds(kPatienceSeconds);
  int sent = 0;
  while (dripping.Send("a") && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(50));
    ++sent;
  }
  EXPECT_LT(absl::Now(), deadline) << sent << " bytes were taken";
  EXPECT_GT(sent, 0) << "it has some time";
}

TEST(LiveServerAddressTest, ErrorsNameTheAddress) {
  LiveView view({}, "a");
  const auto routing = [] { return std::shared_ptr<const RoutingSnapshot>(); };
  const auto socket = LiveServer::Start({.address = "unix:/run/x", .routing = routing}, &view);
  EXPECT_EQ(socket.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("unix:/run/x"));
  for (const char* address : {"0.0.0.0:0", "[::]:0", "9201", "192.0.2.1:0"}) {
    const auto open = LiveServer::Start({.address = address, .routing = routing}, &view);
    EXPECT_EQ(open.status().code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(open.status().message()), HasSubstr(address));
    EXPECT_THAT(std::string(open.status().message()), HasSubstr("--insecure"));
  }
  for (const char* address : {"127.0.0.1:nonsense", "localhost:70000"}) {
    const auto open = LiveServer::Start({.address = address, .routing = routing}, &view);
    EXPECT_EQ(open.status().code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_THAT(std::string(open.status().message()), HasSubstr(address));
  }
}

}  // namespace
}  // namespace tandem::router
