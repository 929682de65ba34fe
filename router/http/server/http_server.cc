#include "router/http/server/http_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/strand.hpp"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/listener.h"
#include "common/rpc/unix_socket.h"
#include "router/http/server/http_session.h"

namespace tandem::router {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

absl::StatusOr<std::shared_ptr<asio::ssl::context>> LoadTls(const TlsFiles& files) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1 | asio::ssl::context::no_compression |
                       SSL_OP_NO_RENEGOTIATION);
  error_code error;
  context->use_certificate_chain_file(files.certificate, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(files.certificate, ": ", error.message(),
                                                   "; expected certificates in PEM, the server's own first"));
  }
  context->use_private_key_file(files.key, asio::ssl::context::pem, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.key, ": ", error.message(), "; expected the certificate's private key in PEM"));
  }
  return context;
}

// What identifies a replaced file: its inode number, size and time of change.
std::string Stamp(const TlsFiles& files) {
  std::string stamp;
  for (const std::string& path : {files.certificate, files.key}) {
    struct stat found = {};
    if (stat(path.c_str(), &found) != 0) continue;
    absl::StrAppend(&stamp, found.st_ino, ".", found.st_size, ".", found.st_mtim.tv_sec, ".",
                    found.st_mtim.tv_nsec, ";");
  }
  return stamp;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(Options options, HttpHandler* handler)
      : shared_(std::make_shared<HttpShared>(std::move(options), handler)),
        options_(shared_->options),
        work_(asio::make_work_guard(shared_->io)) {}

  ~Impl() {
    if (listener_ != nullptr) listener_->Stop();
    // What waits for the sessions is told by the threads, which run until then.
    for (const std::shared_ptr<HttpSessionBase>& session : Sessions()) session->Close();
    const absl::Time end = absl::Now() + options_.farewell;
    while (!Sessions().empty() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    shared_->ended = true;
  }

  absl::Status Start() {
    if (UnixSocketPath(options_.address).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", options_.address, "\": HTTP needs a port; expected host:port"));
    }
    if (!options_.tls.certificate.empty()) {
      stamp_ = Stamp(options_.tls);
      TANDEM_ASSIGN_OR_RETURN(tls_, LoadTls(options_.tls));
      looked_ = absl::Now();
    }
    TANDEM_ASSIGN_OR_RETURN(listener_, Listener::Bind(options_.address));
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { shared_->io.run(); });
    listener_->Start({.max_connections = static_cast<int>(options_.max_connections)},
                     [this](int socket) { Serve(socket); });
    return absl::OkStatus();
  }

  void Drain() {
    shared_->draining = true;
    listener_->Stop();
    for (const std::shared_ptr<HttpSessionBase>& session : Sessions()) session->CloseIfIdle();
  }

  int port() const { return listener_->port(); }
  size_t num_connections() const { return shared_->num_connections; }

 private:
  // On the listener's thread.
  void Serve(int handle) {
    tcp::socket socket(asio::make_strand(shared_->io));
    error_code error;
    socket.assign(FamilyOf(handle), handle, error);
    if (error) {
      ::close(handle);
      return;
    }
    socket.set_option(tcp::no_delay(true), error);
    if (shared_->num_connections >= options_.max_connections) return;  // Closed.
    std::shared_ptr<HttpSessionBase> session = MakeHttpSession(std::move(socket), CurrentTls(), shared_);
    {
      absl::MutexLock lock(&mutex_);
      if (sessions_.size() >= 2 * shared_->num_connections + 64) Sweep();
      sessions_.push_back(session);
    }
    session->Start();
  }

  static tcp FamilyOf(int handle) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    const bool known = getsockname(handle, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    return known && address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4();
  }

  // New connections are made with the files as they are now; with those of before while they cannot be used.
  std::shared_ptr<asio::ssl::context> CurrentTls() {
    if (tls_ == nullptr || absl::Now() - looked_ < absl::Seconds(options_.tls.refresh_seconds)) return tls_;
    looked_ = absl::Now();
    std::string stamp = Stamp(options_.tls);
    if (stamp == stamp_) return tls_;
    absl::StatusOr<std::shared_ptr<asio::ssl::context>> tls = LoadTls(options_.tls);
    if (tls.ok()) {
      tls_ = *std::move(tls);
      stamp_ = std::move(stamp);
    } else {
      LogWarning("changed certificates cannot be used: HTTP keeps the previous ones",
                 {{"error", std::string(tls.status().message())}});
    }
    return tls_;
  }

  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sessions_.erase(std::remove_if(sessions_.begin(), sessions_.end(),
                                   [](const auto& session) { return session.expired(); }),
                    sessions_.end());
  }

  std::vector<std::shared_ptr<HttpSessionBase>> Sessions() {
    absl::MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<HttpSessionBase>> sessions;
    for (const std::weak_ptr<HttpSessionBase>& weak : sessions_) {
      if (std::shared_ptr<HttpSessionBase> session = weak.lock()) sessions.push_back(std::move(session));
    }
    return sessions;
  }

  const std::shared_ptr<HttpShared> shared_;
  const Options& options_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Listener> listener_;
  // The listener's thread's, once that runs.
  std::shared_ptr<asio::ssl::context> tls_;
  std::string stamp_;
  absl::Time looked_;
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<HttpSessionBase>> sessions_ ABSL_GUARDED_BY(mutex_);
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, HttpHandler* handler) {
  auto impl = std::make_unique<Impl>(std::move(options), handler);
  TANDEM_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const {
  return impl_->port();
}

size_t HttpServer::num_connections() const {
  return impl_->num_connections();
}

void HttpServer::Drain() {
  impl_->Drain();
}

}  // namespace tandem::router
