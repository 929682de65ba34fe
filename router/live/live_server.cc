#include "router/live/live_server.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/config/secret.h"
#include "common/rpc/security.h"
#include "router/live/live_json.h"
#include "router/live/page.h"

namespace tandem::router {
namespace {

// A browser gets something at least this often, so that it can distinguish a quiet router from a lost one.
constexpr absl::Duration kBeat = absl::Seconds(1);
// Time to tell browsers that the server ends.
constexpr absl::Duration kFarewell = absl::Seconds(1);
// A browser has so many times `patience` to read what is written at once, up to 64 events.
constexpr int kReadingShare = 5;
// Requests have no body.
constexpr size_t kMaxBodyBytes = 1024;

// Loads nothing from elsewhere, stores nothing, and may not be framed.
HttpAnswer Safely(HttpAnswer answer) {
  answer.fields.insert(
      answer.fields.end(),
      {{"Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
       {"X-Content-Type-Options", "nosniff"},
       {"X-Frame-Options", "DENY"},
       {"Referrer-Policy", "no-referrer"},
       {"Cross-Origin-Opener-Policy", "same-origin"},
       {"Cross-Origin-Resource-Policy", "same-origin"},
       {"Cache-Control", "no-store"}});
  return answer;
}

constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kEvents[] = "text/event-stream; charset=utf-8";

HttpAnswer Refusal(int status, std::string why) {
  return Safely({.status = status, .fields = {{"Content-Type", kPlain}}, .body = std::move(why)});
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

}  // namespace

// One browser that watches. The thread of the streams has it to itself, but for what other threads set.
struct LiveServer::Stream : std::enable_shared_from_this<LiveServer::Stream> {
  std::shared_ptr<HttpExchange> exchange;
  std::unique_ptr<LiveFeed::Watcher> watcher;
  Secret authorization;
  std::string next;   // To be written before anything else.
  bool ends = false;  // `next` was the last.
  uint64_t tallies_told = 0;
  uint64_t routing_told = 0;
  absl::Time table_due = absl::InfinitePast();
  absl::Time wrote_at;
  std::atomic<bool> writing{false};
  std::atomic<bool> gone{false};
};

absl::StatusOr<std::unique_ptr<LiveServer>> LiveServer::Start(Options options, LiveView* view) {
  if (!options.insecure && !IsLoopback(options.address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--live-listen: other machines can reach \"", options.address,
                     "\", and the live page has no TLS; expected a loopback address such as 127.0.0.1, or "
                     "--insecure if this is intended"));
  }
  std::unique_ptr<LiveServer> server(new LiveServer(std::move(options), view));
  const Options& given = server->options_;
  absl::StatusOr<std::unique_ptr<HttpServer>> http =
      HttpServer::Start({.address = given.address,
                         .threads = 1,
                         .max_connections = given.max_connections,
                         .max_body_bytes = kMaxBodyBytes,
                         .head_timeout = given.patience,
                         .body_timeout = given.patience,
                         .answer_timeout = given.patience,
                         .idle_timeout = given.patience},
                        server.get());
  if (!http.ok()) {
    return absl::Status(http.status().code(), absl::StrCat("live page address ", http.status().message()));
  }
  server->http_ = *std::move(http);
  server->writer_ = std::thread([server = server.get()] { server->WriteToStreams(); });
  return server;
}

LiveServer::LiveServer(Options options, LiveView* view)
    : options_(std::move(options)), view_(*view), loopback_(IsLoopback(options_.address)) {}

LiveServer::~LiveServer() {
  view_.feed.Close();
  if (http_ == nullptr) return;
  const absl::Time end = absl::Now() + kFarewell;
  http_->Drain();
  view_.feed.AwaitNoWatchers(kFarewell);
  // The last bytes of streams are on their way.
  while (http_->num_connections() > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  ending_ = true;
  view_.feed.Wake();
  writer_.join();
}

bool LiveServer::MayAdminister(absl::string_view authorization) const {
  constexpr absl::string_view kScheme = "Basic ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return false;
  authorization.remove_prefix(kScheme.size());
  std::string pair;
  if (!absl::Base64Unescape(authorization, &pair)) return false;
  const size_t colon = pair.find(':');
  if (colon == std::string::npos) return false;
  const std::shared_ptr<const RoutingSnapshot> routing = options_.routing();
  const std::optional<size_t> tenant =
      routing->tenants().Authenticate(absl::StrCat("Bearer ", pair.substr(colon + 1)));
  return tenant.has_value() && routing->table().tenants[*tenant].admin;
}

std::optional<HttpAnswer> LiveServer::Refuse(const HttpHead& head) const {
  if (loopback_) {
    if (NamesLoopback(head.Field("host").value_or(""))) return std::nullopt;
    return Refusal(403,
                   "Open this page as localhost or by its loopback address: other names could let another "
                   "site in.\n");
  }
  if (MayAdminister(head.Field("authorization").value_or(""))) return std::nullopt;
  HttpAnswer answer = Refusal(401, "Expected an admin tenant's token as the password, with any user name.\n");
  answer.fields.emplace_back("WWW-Authenticate", "Basic realm=\"Tandem live page\", charset=\"UTF-8\"");
  return answer;
}

std::optional<HttpAnswer> LiveServer::Check(const HttpHead& head, std::shared_ptr<void>&) {
  if (std::optional<HttpAnswer> refusal = Refuse(head); refusal.has_value()) return refusal;
  if (head.method != "GET" && head.method != "HEAD") {
    HttpAnswer answer = Refusal(405, "This page supports only GET and HEAD.\n");
    answer.fields.emplace_back("Allow", "GET, HEAD");
    return answer;
  }
  const auto is_this = [&head](const PageFile& file) { return head.path == file.path; };
  if (head.path == "/events" || std::any_of(kPageFiles.begin(), kPageFiles.end(), is_this))
    return std::nullopt;
  return Refusal(404, "Not found; the page is at /.\n");
}

void LiveServer::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const HttpHead& head = request.head;
  if (head.path == "/events") {
    if (head.method == "GET") return BeginStream(head, std::move(exchange));
    return exchange->Answer(Safely({.fields = {{"Content-Type", kEvents}}}));
  }
  for (const PageFile& file : kPageFiles) {
    if (head.path != file.path) continue;
    return exchange->Answer(
        Safely({.fields = {{"Content-Type", std::string(file.type)}}, .body = std::string(file.content)}));
  }
}

// A browser names the last event it saw as "instance-id". Of another instance it has seen nothing.
uint64_t LiveServer::LastSeen(const HttpHead& head) const {
  const std::string seen = head.Field("last-event-id").value_or("");
  uint64_t id = 0;
  const std::string prefix = absl::StrCat(view_.feed.instance(), "-");
  if (!absl::StartsWith(seen, prefix)) return 0;
  return absl::SimpleAtoi(seen.substr(prefix.size()), &id) ? id : 0;
}

void LiveServer::BeginStream(const HttpHead& head, std::shared_ptr<HttpExchange> exchange) {
  // Another site's page could not read the stream, but take the place of somebody who can.
  const std::string site = head.Field("sec-fetch-site").value_or("none");
  if (site != "same-origin" && site != "none")
    return exchange->Answer(Refusal(403, "Only the live page may read events.\n"));
  absl::StatusOr<std::unique_ptr<LiveFeed::Watcher>> watcher = view_.feed.Watch(LastSeen(head));
  if (!watcher.ok()) {
    HttpAnswer answer = Refusal(503, absl::StrCat(watcher.status().message(), "\n"));
    answer.fields.emplace_back("Retry-After", "5");
    return exchange->Answer(std::move(answer));
  }
  auto stream = std::make_shared<Stream>();
  stream->exchange = exchange;
  stream->watcher = *std::move(watcher);
  stream->authorization = Secret(head.Field("authorization").value_or(""));
  stream->next = Frame("hello", HelloJson(view_.feed.options(), view_.feed.instance()));
  exchange->Begin(Safely({.fields = {{"Content-Type", kEvents}}}));
  exchange->SetOnGone([weak = std::weak_ptr<Stream>(stream), feed = &view_.feed] {
    if (const std::shared_ptr<Stream> left = weak.lock()) left->gone = true;
    feed->Wake();
  });
  {
    absl::MutexLock lock(&mutex_);
    streams_.push_back(std::move(stream));
  }
  view_.feed.Wake();
}

void LiveServer::WriteToStreams() {
  while (!ending_) {
    const uint64_t news = view_.feed.news();
    const absl::Time now = absl::Now();
    absl::Time due = now + kBeat;
    std::vector<std::shared_ptr<Stream>> streams;
    {
      absl::MutexLock lock(&mutex_);
      streams = streams_;
    }
    for (const std::shared_ptr<Stream>& stream : streams) {
      if (WriteTo(*stream, now)) {
        due = std::min(
            due, stream->writing ? stream->wrote_at + kReadingShare * options_.patience : stream->table_due);
        continue;
      }
      absl::MutexLock lock(&mutex_);
      streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
    }
    streams.clear();  // With the watchers of those that are over.
    view_.feed.AwaitNews(news, std::max(due - absl::Now(), absl::ZeroDuration()));
  }
}

bool LiveServer::WriteTo(Stream& stream, absl::Time now) {
  if (stream.gone) return false;
  if (stream.writing) {
    if (now < stream.wrote_at + kReadingShare * options_.patience) return true;
    stream.exchange->Abort();
    return false;
  }
  if (stream.ends) {
    stream.exchange->End();
    return false;
  }
  std::string bytes = NextOf(stream, now);
  if (bytes.empty()) return true;
  stream.writing = true;
  stream.wrote_at = now;
  stream.exchange->Write(std::move(bytes), [weak = stream.weak_from_this(), feed = &view_.feed](bool ok) {
    if (const std::shared_ptr<Stream> written = weak.lock()) {
      if (!ok) written->gone = true;
      written->writing = false;
    }
    feed->Wake();
  });
  return true;
}

std::string LiveServer::NextOf(Stream& stream, absl::Time now) {
  std::string out = std::exchange(stream.next, "");
  const bool is_due = now >= stream.table_due;
  if (is_due) {
    // Who is no admin any longer sees no more, not even what was about to be sent.
    if (!loopback_ && !MayAdminister(stream.authorization.Reveal())) {
      stream.ends = true;
      return Frame("bye", "{}");
    }
    const std::shared_ptr<const RoutingSnapshot> routing = options_.routing();
    const uint64_t version = view_.tallies.version();
    if (version != stream.tallies_told || routing->version() != stream.routing_told) {
      out += Frame("tenants", TenantsJson(routing->table(), view_.tallies.All()));
      stream.tallies_told = version;
      stream.routing_told = routing->version();
    }
    stream.table_due = now + kBeat;
  }
  const LiveFeed::Watcher::Batch batch = stream.watcher->Next(absl::ZeroDuration());
  if (batch.missed > 0) out += Frame("gap", GapJson(batch.missed));
  for (const std::shared_ptr<const LiveEvent>& event : batch.events) {
    out += Frame(event->type, event->json, absl::StrCat(view_.feed.instance(), "-", event->id));
  }
  if (batch.closed) {
    stream.ends = true;
    out += Frame("bye", "{}");
  }
  if (out.empty() && is_due) out = Frame("beat", "{}");
  return out;
}

}  // namespace tandem::router
