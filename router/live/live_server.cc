#include "router/live/live_server.h"

#include <civetweb.h>

#include <array>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/rpc/security.h"
#include "router/live/live_json.h"
#include "router/live/page.h"

namespace tandem::router {
namespace {

// A browser hears something at least as often: it can tell a quiet router from one that is lost.
constexpr absl::Duration kBeat = absl::Seconds(1);
// For browsers to be told that the server ends.
constexpr absl::Duration kFarewell = absl::Seconds(1);

// Nothing from elsewhere is loaded, nothing is kept, nobody frames the page.
constexpr char kSafetyHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

struct Answer {
  absl::string_view status = "200 OK";
  absl::string_view type = "text/plain; charset=utf-8";
  absl::string_view headers;  // More of them, each with its end.
  std::string body;
};

void Send(mg_connection* connection, const Answer& answer) {
  const bool with_body = !absl::EqualsIgnoreCase(mg_get_request_info(connection)->request_method, "HEAD");
  const std::string message =
      absl::StrCat("HTTP/1.1 ", answer.status, "\r\nContent-Type: ", answer.type,
                   "\r\nContent-Length: ", answer.body.size(), "\r\n", kSafetyHeaders, answer.headers, "\r\n",
                   with_body ? absl::string_view(answer.body) : absl::string_view());
  mg_write(connection, message.data(), message.size());
}

absl::string_view Header(mg_connection* connection, const char* name) {
  const char* value = mg_get_header(connection, name);
  return value == nullptr ? absl::string_view() : absl::string_view(value);
}

// "127.0.0.1:9201", "[::1]", "localhost": what names this machine whatever a name server says.
bool NamesLoopback(absl::string_view host) {
  if (absl::StartsWithIgnoreCase(host, "unix")) return false;  // A name here, not a kind of address.
  const bool has_port = host.rfind(':') != absl::string_view::npos && !absl::EndsWith(host, "]");
  return IsLoopback(has_port ? std::string(host) : absl::StrCat(host, ":0"));
}

std::string Frame(absl::string_view type, absl::string_view json, absl::string_view id = "") {
  return absl::StrCat("event: ", type, id.empty() ? "" : "\nid: ", id, "\ndata: ", json, "\n\n");
}

int IgnoreMessage(const mg_connection*, const char*) {
  return 1;  // It has been dealt with.
}

}  // namespace

absl::StatusOr<std::unique_ptr<LiveServer>> LiveServer::Start(Options options, LiveView* view) {
  if (!options.insecure && !IsLoopback(options.address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--live-listen: other machines can reach \"", options.address,
                     "\", and the live page has no TLS; expected a loopback address such as 127.0.0.1, or "
                     "--insecure if this is intended"));
  }
  std::unique_ptr<LiveServer> server(new LiveServer(std::move(options), view));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

LiveServer::LiveServer(Options options, LiveView* view)
    : options_(std::move(options)), view_(*view), loopback_(IsLoopback(options_.address)) {
  mg_init_library(0);
}

LiveServer::~LiveServer() {
  view_.feed.Close();
  // From mg_stop on nothing is written any more.
  view_.feed.AwaitNoWatchers(kFarewell);
  if (context_ != nullptr) mg_stop(context_);
  mg_exit_library();
}

absl::Status LiveServer::Listen() {
  const std::string threads =
      absl::StrCat(view_.feed.options().max_watchers + kSpareThreads + kAnsweringThreads);
  // Of all of a request's head, however slowly it comes, and of every write.
  const std::string patience = absl::StrCat(absl::ToInt64Milliseconds(options_.patience));
  // No files are served; the library answers no preflight of another origin.
  const std::vector<const char*> settings = {"listening_ports",
                                             options_.address.c_str(),
                                             "num_threads",
                                             threads.c_str(),
                                             "request_timeout_ms",
                                             patience.c_str(),
                                             "enable_keep_alive",
                                             "no",
                                             "enable_directory_listing",
                                             "no",
                                             "access_control_allow_origin",
                                             "",
                                             "access_control_allow_methods",
                                             "",
                                             nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = IgnoreMessage;
  context_ = mg_start(&callbacks, this, const_cast<const char**>(settings.data()));
  if (context_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("live page address \"", options_.address,
                     "\" cannot be bound; expected host:port, with a port that no other process uses"));
  }
  mg_set_request_handler(context_, "/", &LiveServer::OnRequest, this);
  std::array<mg_server_port, 2> ports = {};
  if (mg_get_server_ports(context_, static_cast<int>(ports.size()), ports.data()) > 0) port_ = ports[0].port;
  return absl::OkStatus();
}

int LiveServer::OnRequest(mg_connection* connection, void* server) {
  try {
    static_cast<LiveServer*>(server)->Handle(connection);
  } catch (const std::exception& error) {
    LogError("the live page failed", {{"error", error.what()}});
  }
  return 1;  // Answered.
}

bool LiveServer::MayAdminister(const char* authorization) const {
  if (authorization == nullptr) return false;
  absl::string_view encoded = authorization;
  constexpr absl::string_view kScheme = "Basic ";
  if (!absl::StartsWithIgnoreCase(encoded, kScheme)) return false;
  encoded.remove_prefix(kScheme.size());
  std::string pair;
  if (!absl::Base64Unescape(encoded, &pair)) return false;
  const size_t colon = pair.find(':');
  if (colon == std::string::npos) return false;
  const std::shared_ptr<const RoutingSnapshot> routing = options_.routing();
  const std::optional<size_t> tenant =
      routing->tenants().Authenticate(absl::StrCat("Bearer ", pair.substr(colon + 1)));
  return tenant.has_value() && routing->table().tenants[*tenant].admin;
}

bool LiveServer::Admit(mg_connection* connection) const {
  if (loopback_) {
    if (NamesLoopback(Header(connection, "Host"))) return true;
    Send(connection, {.status = "403 Forbidden",
                      .body = "Open this page as localhost or by its loopback address: other names could let "
                              "another site in.\n"});
    return false;
  }
  if (MayAdminister(mg_get_header(connection, "Authorization"))) return true;
  Send(connection, {.status = "401 Unauthorized",
                    .headers = "WWW-Authenticate: Basic realm=\"Tandem live page\", charset=\"UTF-8\"\r\n",
                    .body = "Expected an admin tenant's token as the password, with any user name.\n"});
  return false;
}

void LiveServer::Handle(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const absl::string_view method = request.request_method;
  const absl::string_view path = request.local_uri == nullptr ? "" : request.local_uri;
  if (!Admit(connection)) return;
  if (method != "GET" && method != "HEAD") {
    return Send(connection, {.status = "405 Method Not Allowed",
                             .headers = "Allow: GET, HEAD\r\n",
                             .body = "This page supports only GET and HEAD.\n"});
  }
  if (path == "/events") return StreamEvents(connection);
  for (const PageFile& file : kPageFiles) {
    if (path != file.path) continue;
    return Send(connection,
                {.type = file.type, .body = std::string(file.content.data(), file.content.size())});
  }
  Send(connection, {.status = "404 Not Found", .body = "Not found; the page is at /.\n"});
}

// A browser names the last event it saw as "instance-id". Of another instance it has seen nothing.
uint64_t LiveServer::LastSeen(mg_connection* connection) const {
  absl::string_view seen = Header(connection, "Last-Event-ID");
  uint64_t id = 0;
  const std::string prefix = absl::StrCat(view_.feed.instance(), "-");
  if (!absl::StartsWith(seen, prefix)) return 0;
  return absl::SimpleAtoi(seen.substr(prefix.size()), &id) ? id : 0;
}

void LiveServer::StreamEvents(mg_connection* connection) {
  if (mg_get_request_info(connection)->request_method != absl::string_view("GET")) {
    return Send(connection, {.type = "text/event-stream; charset=utf-8", .body = ""});
  }
  // Another site's page could not read the stream, but take the place of somebody who can.
  const absl::string_view site = Header(connection, "Sec-Fetch-Site");
  if (!site.empty() && site != "same-origin" && site != "none") {
    return Send(connection, {.status = "403 Forbidden", .body = "Only the live page may read events.\n"});
  }
  absl::StatusOr<std::unique_ptr<LiveFeed::Watcher>> watcher = view_.feed.Watch(LastSeen(connection));
  if (!watcher.ok()) {
    return Send(connection, {.status = "503 Service Unavailable",
                             .headers = "Retry-After: 5\r\n",
                             .body = absl::StrCat(watcher.status().message(), "\n")});
  }
  std::string out =
      absl::StrCat("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n", kSafetyHeaders,
                   "\r\n", Frame("hello", HelloJson(view_.feed.options(), view_.feed.instance())));
  uint64_t tallies_told = 0;
  uint64_t routing_told = 0;
  absl::Time table_due = absl::InfinitePast();
  bool closed = false;
  while (true) {
    if (absl::Now() >= table_due) {
      // Who is no admin any longer sees no more, not even what was about to be sent.
      if (!loopback_ && !MayAdminister(mg_get_header(connection, "Authorization"))) {
        out = Frame("bye", "{}");
        mg_write(connection, out.data(), out.size());
        return;
      }
      const std::shared_ptr<const RoutingSnapshot> routing = options_.routing();
      const uint64_t version = view_.tallies.version();
      if (version != tallies_told || routing->version() != routing_told) {
        out += Frame("tenants", TenantsJson(routing->table(), view_.tallies.All()));
        tallies_told = version;
        routing_told = routing->version();
      }
      table_due = absl::Now() + kBeat;
    }
    if (closed) out += Frame("bye", "{}");
    if (out.empty()) out = Frame("beat", "{}");
    if (mg_write(connection, out.data(), out.size()) <= 0 || closed) return;
    out.clear();
    const LiveFeed::Watcher::Batch batch = (*watcher)->Next(kBeat);
    if (batch.missed > 0) out += Frame("gap", GapJson(batch.missed));
    for (const std::shared_ptr<const LiveEvent>& event : batch.events) {
      out += Frame(event->type, event->json, absl::StrCat(view_.feed.instance(), "-", event->id));
    }
    closed = batch.closed;
  }
}

}  // namespace tandem::router
