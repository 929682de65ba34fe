#include "router/http/server/http_session.h"

#include <algorithm>
#include <deque>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/bind_executor.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/read.hpp"
#include "boost/beast/http/status.hpp"
#include "boost/beast/http/string_body.hpp"

namespace tandem::router {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::beast::error_code;

constexpr size_t kReadBytes = size_t{16} << 10;
// A client that was refused before it had sent its body has to hear why: what it still sends is read and
// dropped, so that closing does not reset the connection under the answer.
constexpr size_t kMaxLingerBytes = size_t{1} << 20;
constexpr absl::Duration kLingerTime = absl::Seconds(2);

// In OpenAI's format, as all errors are. `message` and `code` need no escapes.
HttpAnswer Refusal(int status, absl::string_view message, absl::string_view code) {
  return {.status = status,
          .fields = {{"Content-Type", "application/json"}},
          .body = absl::StrCat(R"({"error":{"message":")", message,
                               R"(","type":"invalid_request_error","param":null,"code":")", code, "\"}}")};
}

HttpAnswer Malformed(absl::string_view message) {
  return Refusal(400, message, "malformed_request");
}

// The answer to a request that Beast refuses; none for connections that have just ended.
std::optional<HttpAnswer> AnswerTo(const error_code& error) {
  if (error == http::error::body_limit) return Refusal(413, "the body is too large", "body_too_large");
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return Refusal(431, "the head of the request is too large", "head_too_large");
  if (error == http::error::end_of_stream || error == http::error::partial_message) return std::nullopt;
  if (error.category() == make_error_code(http::error::bad_version).category())
    return Malformed(absl::StrCat("the request is malformed: ", error.message()));
  return std::nullopt;
}

// The target's path: of "/v1/models?x", and of "http://host/v1/models", which proxies send. Several slashes
// in a row are one: clients whose base URL ends with a slash put two of them.
std::string PathOf(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.size(), target.find_first_of("/?")));
    break;
  }
  std::string path(target.substr(0, target.find('?')));
  const auto doubled = [](char a, char b) { return a == '/' && b == '/'; };
  path.erase(std::unique(path.begin(), path.end(), doubled), path.end());
  return path.empty() ? "/" : path;
}

HttpHead HeadOf(const http::request_parser<http::string_body>& parser) {
  const auto& message = parser.get();
  HttpHead head;
  head.method = std::string(message.method_string());
  head.path = PathOf({message.target().data(), message.target().size()});
  for (const auto& field : message) {
    head.fields.emplace_back(absl::AsciiStrToLower({field.name_string().data(), field.name_string().size()}),
                             std::string(field.value()));
  }
  return head;
}

// One exchange of a session, which ends with the session's wish to read the next request.
template <class Stream>
class Session final : public HttpSessionBase {
 public:
  template <class... Args>
  Session(std::shared_ptr<HttpShared> shared, std::shared_ptr<asio::ssl::context> tls, tcp::socket socket,
          Args&... args)
      : kept_(std::move(shared)),
        shared_(*kept_),
        tls_(std::move(tls)),
        stream_(std::move(socket), args...),
        timer_(stream_.get_executor()) {
    shared_.num_connections.fetch_add(1);
  }
  ~Session() override {
    if (state_ != State::kClosed) shared_.num_connections.fetch_sub(1);
  }

  void Start() override {
    Post([this] {
      if constexpr (kTls) {
        SetDeadline(shared_.options.head_timeout);
        stream_.async_handshake(asio::ssl::stream_base::server, Then([this](const error_code& error) {
                                  if (error) return Shut();
                                  AwaitRequest();
                                }));
      } else {
        AwaitRequest();
      }
    });
  }

  void CloseIfIdle() override {
    Post([this] {
      if (state_ == State::kIdle) Shut();
    });
  }

  void Close() override {
    Post([this] { Shut(); });
  }

 private:
  static constexpr bool kTls = !std::is_same_v<Stream, tcp::socket>;
  using Parser = http::request_parser<http::string_body>;
  enum class State { kIdle, kReading, kAnswering, kClosed };

  // The exchange that a handler holds. It keeps the session, and does nothing once another request is served.
  class Exchange final : public HttpExchange {
   public:
    Exchange(std::shared_ptr<Session> session, uint64_t number)
        : session_(std::move(session)), number_(number) {}

    void Answer(HttpAnswer answer) override {
      OnSession([answer = std::move(answer)](Session& session) { session.SendWhole(answer, false); });
    }
    void Begin(HttpAnswer head) override {
      OnSession([head = std::move(head)](Session& session) { session.SendHead(head); });
    }
    void Write(std::string bytes, std::function<void(bool)> done) override {
      session_->Post([session = session_.get(), number = number_, bytes = std::move(bytes),
                      done = std::move(done)]() mutable {
        if (!session->Serves(number)) return done(false);
        if (bytes.empty()) return done(true);
        session->SendPiece(std::move(bytes), std::move(done));
      });
    }
    void End() override {
      OnSession([](Session& session) { session.SendEnd(); });
    }
    void Abort() override {
      OnSession([](Session& session) { session.Shut(); });
    }
    void SetOnGone(std::function<void()> on_gone) override {
      session_->Post([session = session_.get(), number = number_, on_gone = std::move(on_gone)]() mutable {
        if (session->number_ != number) return;
        if (session->state_ == State::kClosed) return on_gone();
        session->on_gone_ = std::move(on_gone);
      });
    }

   private:
    template <class F>
    void OnSession(F act) {
      session_->Post([session = session_.get(), number = number_, act = std::move(act)]() mutable {
        if (session->Serves(number)) act(*session);
      });
    }

    const std::shared_ptr<Session> session_;
    const uint64_t number_;
  };

  struct Piece {
    std::string bytes;
    std::function<void(bool)> done;  // May be none.
  };

  std::shared_ptr<Session> Self() { return std::static_pointer_cast<Session>(shared_from_this()); }

  // Runs on the session's executor, a strand: what follows needs no lock.
  template <class F>
  void Post(F act) {
    // Nobody would run it, and it would keep the session for ever.
    if (shared_.ended) return;
    asio::post(stream_.get_executor(), [self = Self(), act = std::move(act)]() mutable { act(); });
  }
  template <class F>
  auto Then(F act) {
    return [self = Self(), act = std::move(act)](const error_code& error, auto&&...) mutable { act(error); };
  }

  bool Serves(uint64_t number) const { return number == number_ && state_ == State::kAnswering; }
  tcp::socket& Socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  // When it passes the connection is broken, whatever it waits for; replaces the one before.
  void SetDeadline(absl::Duration after) {
    timer_.expires_after(absl::ToChronoMilliseconds(after));
    timer_.async_wait([weak = std::weak_ptr<Session>(Self())](const error_code& error) {
      const std::shared_ptr<Session> self = weak.lock();
      // One that was replaced may have been on its way already.
      if (error || self == nullptr || self->timer_.expiry() > asio::steady_timer::clock_type::now()) return;
      self->OnDeadline();
    });
  }
  void ClearDeadline() { timer_.cancel(); }

  // A request that has begun and does not get on is told so, once its read has ended.
  void OnDeadline() {
    if (state_ != State::kReading || timed_out_) return Shut();
    timed_out_ = true;
    error_code ignored;
    Socket().cancel(ignored);
    SetDeadline(shared_.options.answer_timeout);
  }

  // Breaks the connection, and notifies those who wait for it.
  void Shut() {
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    shared_.num_connections.fetch_sub(1);
    timer_.cancel();
    error_code ignored;
    Socket().shutdown(tcp::socket::shutdown_both, ignored);
    Socket().close(ignored);
    hold_.reset();
    TellGone();
  }

  void TellGone() {
    if (auto on_gone = std::exchange(on_gone_, nullptr)) on_gone();
  }

  // Waits for the next request's first byte.
  void AwaitRequest() {
    if (shared_.draining) return Shut();
    state_ = State::kIdle;
    if (buffer_.size() > 0) return ReadHead();
    SetDeadline(shared_.options.idle_timeout);
    if (!watching_) Watch();
  }

  // Reads into the buffer, which is empty: the next request, or that the client is gone.
  void Watch() {
    watching_ = true;
    stream_.async_read_some(
        buffer_.prepare(kReadBytes),
        [self = Self()](const error_code& error, size_t bytes) { self->OnWatched(error, bytes); });
  }

  void OnWatched(const error_code& error, size_t bytes) {
    watching_ = false;
    if (state_ == State::kClosed) return;
    if (error) return Shut();
    buffer_.commit(bytes);
    // Requests sent ahead of the answer wait; a write shows whether the client is still there.
    if (state_ == State::kIdle) ReadHead();
  }

  void ReadHead() {
    state_ = State::kReading;
    timed_out_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_.options.max_head_bytes));
    parser_->body_limit(shared_.options.max_body_bytes);
    SetDeadline(shared_.options.head_timeout);
    http::async_read_header(stream_, buffer_, *parser_, Then([this](const error_code& error) {
                              if (error) return RefuseMalformed(error);
                              OnHead();
                            }));
  }

  void RefuseMalformed(const error_code& error) {
    if (state_ == State::kClosed) return;
    const std::optional<HttpAnswer> answer =
        timed_out_ ? Refusal(408, "the request did not arrive in time", "request_timeout") : AnswerTo(error);
    if (!answer.has_value()) return Shut();
    state_ = State::kAnswering;
    keep_alive_ = false;
    SendWhole(*answer, true);
  }

  // The end of a body must be unambiguous, for this server and for proxies in between. Beast refuses a length
  // together with chunks, and two lengths.
  std::optional<HttpAnswer> RefuseFraming() const {
    const std::optional<std::string> length = head_.Field("content-length");
    if (length.has_value() &&
        (length->empty() || length->find_first_not_of("0123456789") != std::string::npos))
      return Malformed("Content-Length: expected one number");
    const std::optional<std::string> encoding = head_.Field("transfer-encoding");
    if (encoding.has_value() && !absl::EqualsIgnoreCase(*encoding, "chunked"))
      return Refusal(501, "Transfer-Encoding: expected none or chunked", "unsupported_transfer_encoding");
    if (encoding.has_value() && !chunks_) return Malformed("Transfer-Encoding: HTTP/1.0 has none");
    if (head_.Field("content-encoding").has_value() && head_.Field("content-encoding") != "identity")
      return Refusal(415, "Content-Encoding: expected none; compressed bodies are not supported",
                     "unsupported_content_encoding");
    const std::optional<std::string> host = head_.Field("host");
    if (chunks_ && (!host.has_value() || host->empty())) return Malformed("Host: expected one");
    return std::nullopt;
  }

  void OnHead() {
    head_ = HeadOf(*parser_);
    keep_alive_ = parser_->get().keep_alive();
    chunks_ = parser_->get().version() >= 11;
    is_head_ = parser_->get().method() == http::verb::head;
    if (std::optional<HttpAnswer> refusal = RefuseFraming(); refusal.has_value()) {
      keep_alive_ = false;
      state_ = State::kAnswering;
      return SendWhole(*refusal, true);
    }
    if (std::optional<HttpAnswer> refusal = shared_.handler.Check(head_, hold_); refusal.has_value()) {
      // What has no body can be followed by the next request.
      const bool whole = parser_->is_done();
      keep_alive_ = keep_alive_ && whole;
      state_ = State::kAnswering;
      return SendWhole(*refusal, !whole);
    }
    SetDeadline(shared_.options.body_timeout);
    if (absl::EqualsIgnoreCase(head_.Field("expect").value_or(""), "100-continue")) {
      static constexpr absl::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      asio::async_write(stream_, asio::buffer(kContinue.data(), kContinue.size()),
                        Then([this](const error_code& error) {
                          if (error) return Shut();
                          ReadBody();
                        }));
    } else {
      ReadBody();
    }
  }

  void ReadBody() {
    http::async_read(stream_, buffer_, *parser_, Then([this](const error_code& error) {
                       if (error) return RefuseMalformed(error);
                       OnRequest();
                     }));
  }

  void OnRequest() {
    if (state_ == State::kClosed) return;
    state_ = State::kAnswering;
    ClearDeadline();
    ++number_;
    HttpRequest request{.head = std::move(head_), .body = std::move(parser_->get().body())};
    parser_.reset();
    if (buffer_.size() == 0) Watch();
    shared_.handler.Handle(std::move(request), std::make_shared<Exchange>(Self(), number_));
  }

  std::string HeadText(const HttpAnswer& answer) {
    if (shared_.draining) keep_alive_ = false;
    std::string text =
        absl::StrCat("HTTP/1.1 ", answer.status, " ",
                     std::string(http::obsolete_reason(static_cast<http::status>(answer.status))), "\r\n");
    for (const auto& [name, value] : answer.fields) absl::StrAppend(&text, name, ": ", value, "\r\n");
    absl::StrAppend(&text, "Connection: ", keep_alive_ ? "keep-alive" : "close", "\r\n");
    return text;
  }

  // `linger`: the client may still be sending a body that is not read.
  void SendWhole(const HttpAnswer& answer, bool linger) {
    linger_ = linger;
    SetDeadline(shared_.options.answer_timeout);
    Enqueue({absl::StrCat(HeadText(answer), "Content-Length: ", answer.body.size(), "\r\n\r\n",
                          is_head_ ? std::string() : answer.body),
             nullptr});
    Finish();
  }

  void SendHead(const HttpAnswer& answer) {
    if (!chunks_) keep_alive_ = false;  // HTTP/1.0: the answer ends with the connection.
    Enqueue(
        {absl::StrCat(HeadText(answer), chunks_ ? "Transfer-Encoding: chunked\r\n" : "", "\r\n"), nullptr});
  }

  void SendPiece(std::string bytes, std::function<void(bool)> done) {
    if (chunks_) bytes = absl::StrCat(absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
    Enqueue({std::move(bytes), std::move(done)});
  }

  void SendEnd() {
    SetDeadline(shared_.options.answer_timeout);
    if (chunks_) Enqueue({"0\r\n\r\n", nullptr});
    Finish();
  }

  // Nothing more follows: the next request is read when all is out.
  void Finish() {
    // From here on it is no loss if the client goes.
    on_gone_ = nullptr;
    ++number_;
    finishing_ = true;
    if (!writing_) WriteNext();
  }

  void Enqueue(Piece piece) {
    pieces_.push_back(std::move(piece));
    if (!writing_) WriteNext();
  }

  void WriteNext() {
    if (state_ == State::kClosed) return FailPieces();
    if (pieces_.empty()) {
      if (std::exchange(finishing_, false)) AfterAnswer();
      return;
    }
    writing_ = true;
    asio::async_write(stream_, asio::buffer(pieces_.front().bytes), Then([this](const error_code& error) {
                        writing_ = false;
                        if (error) {
                          Shut();
                          return FailPieces();
                        }
                        const std::function<void(bool)> done = std::move(pieces_.front().done);
                        pieces_.pop_front();
                        if (done) done(true);
                        if (!writing_) WriteNext();
                      }));
  }

  void FailPieces() {
    for (std::deque<Piece> pieces = std::exchange(pieces_, {}); const Piece& piece : pieces) {
      if (piece.done) piece.done(false);
    }
  }

  void AfterAnswer() {
    ClearDeadline();
    if (keep_alive_) return AwaitRequest();
    if (!linger_) return Shut();
    error_code ignored;
    Socket().shutdown(tcp::socket::shutdown_send, ignored);
    SetDeadline(kLingerTime);
    Linger(kMaxLingerBytes);
  }

  // Drops what the client still sends.
  void Linger(size_t left) {
    buffer_.consume(buffer_.size());
    Socket().async_read_some(buffer_.prepare(kReadBytes),
                             [self = Self(), left](const error_code& error, size_t bytes) {
                               if (error || bytes >= left) return self->Shut();
                               self->Linger(left - bytes);
                             });
  }

  const std::shared_ptr<HttpShared> kept_;
  HttpShared& shared_;
  const std::shared_ptr<asio::ssl::context> tls_;
  Stream stream_;
  asio::steady_timer timer_;
  State state_ = State::kIdle;
  boost::beast::flat_buffer buffer_;  // Read, and not looked at yet.
  bool watching_ = false;
  std::optional<Parser> parser_;
  HttpHead head_;
  bool keep_alive_ = true;
  bool chunks_ = true;    // The client knows pieces of told length.
  bool is_head_ = false;  // It wants no body.
  bool linger_ = false;
  bool timed_out_ = false;      // Its request did not arrive in time.
  std::shared_ptr<void> hold_;  // The handler's.
  uint64_t number_ = 0;         // Of the request that is being answered; another one when it is.
  std::function<void()> on_gone_;
  std::deque<Piece> pieces_;  // The first is being written while writing_.
  bool writing_ = false;
  bool finishing_ = false;  // The last piece of the answer is among them.
};

}  // namespace

std::optional<std::string> HttpHead::Field(absl::string_view name) const {
  std::optional<std::string> found;
  for (const auto& [field, value] : fields) {
    if (field != name) continue;
    if (found.has_value()) return std::string();
    found = value;
  }
  return found;
}

std::shared_ptr<HttpSessionBase> MakeHttpSession(tcp::socket socket, std::shared_ptr<asio::ssl::context> tls,
                                                 std::shared_ptr<HttpShared> shared) {
  if (tls == nullptr)
    return std::make_shared<Session<tcp::socket>>(std::move(shared), nullptr, std::move(socket));
  asio::ssl::context& context = *tls;
  return std::make_shared<Session<asio::ssl::stream<tcp::socket>>>(std::move(shared), std::move(tls),
                                                                   std::move(socket), context);
}

}  // namespace tandem::router
