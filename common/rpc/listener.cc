#include "common/rpc/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Before a connection that could not be accepted is tried again.
constexpr int kPauseMs = 20;
// For how long a peer may take nothing of what was sent, or be out of reach, before the kernel ends the
// connection. What waits for it is memory.
constexpr unsigned kStalledMs = 30'000;
// Bytes that the kernel takes beyond those on their way; the rest waits in gRPC, which counts them.
constexpr int kMostUnsent = 256 << 10;
// Before the listener looks whether it is to stop.
constexpr int kMostAtOnce = 256;
// Fewer file descriptors than this are soon used up by connections.
constexpr rlim_t kFewDescriptors = 4096;

int64_t MonotonicNanos() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

absl::Status BindError(const std::string& address, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(
      "\"", address, "\" cannot be bound (", what,
      "); expected host:port, with a host of this machine and a port that no other process uses"));
}

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

bool IsWildcard(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr) != 0;
}

in_port_t* PortOf(sockaddr* address) {
  if (address->sa_family == AF_INET) return &reinterpret_cast<sockaddr_in*>(address)->sin_port;
  return &reinterpret_cast<sockaddr_in6*>(address)->sin6_port;
}

// The socket, listening, or -1 with errno.
int Listen(const sockaddr* address, socklen_t size) {
  const int made = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  const int on = 1;
  const int off = 0;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->sa_family == AF_INET6) setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(made, address, size) == 0 && listen(made, SOMAXCONN) == 0) return made;
  const int error = errno;
  close(made);
  errno = error;
  return -1;
}

// Every address of this machine, in both families where there are two.
int ListenEverywhere(in_port_t port) {
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = port;
  const int both = Listen(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
  if (both >= 0 || errno == EADDRINUSE) return both;
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = port;
  return Listen(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
}

int BoundPort(int socket) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(*PortOf(reinterpret_cast<sockaddr*>(&bound)));
}

// Whether the next connection may be accepted although this one could not: it broke while it waited, or a
// signal came.
bool IsOfOneConnection(int error) {
  switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case EPERM:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENOPROTOOPT:
    case ENONET:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& address) {
  std::unique_ptr<Listener> listener(new Listener());
  listener->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->wake_ < 0) return BindError(address, std::strerror(errno));
  const std::optional<std::string> path = UnixSocketPath(address);
  TANDEM_RETURN_IF_ERROR(path.has_value() ? listener->BindPath(*path) : listener->BindHost(address));
  return listener;
}

absl::Status Listener::BindPath(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(path_, UnixSocket::Listen(path));
  sockets_.push_back(path_->Release());
  return absl::OkStatus();
}

absl::Status Listener::BindHost(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return BindError(address, "no port");
  const std::string port = address.substr(colon + 1);
  uint32_t number = 0;
  // getaddrinfo takes the lowest 16 bits of a larger number.
  if (!absl::SimpleAtoi(port, &number) || number > 65535) {
    return BindError(address, absl::StrCat("no port \"", port, "\""));
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "*") host = "0.0.0.0";
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  Addresses found;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found.first);
  if (error != 0) return BindError(address, gai_strerror(error));

  std::string why = "no such address";
  for (const addrinfo* one = found.first; one != nullptr; one = one->ai_next) {
    // A name of several addresses has one port on all of them.
    if (*PortOf(one->ai_addr) == 0) *PortOf(one->ai_addr) = htons(static_cast<uint16_t>(port_));
    const int made =
        IsWildcard(*one) ? ListenEverywhere(*PortOf(one->ai_addr)) : Listen(one->ai_addr, one->ai_addrlen);
    if (made < 0) {
      why = std::strerror(errno);
      if (errno == EADDRINUSE) return BindError(address, why);
      continue;
    }
    sockets_.push_back(made);
    if (port_ == 0) port_ = BoundPort(made);
    if (IsWildcard(*one)) break;
  }
  if (sockets_.empty()) return BindError(address, why);
  return absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

void Listener::Start(const Options& options, std::function<void(int)> serve) {
  const int limit = RaiseDescriptorLimit();
  const int all = limit - std::min(kReservedDescriptors, limit / 4);
  // The lowest number that is free; without one the process has more to worry about.
  const int free = fcntl(wake_, F_DUPFD_CLOEXEC, 0);
  if (free >= 0) close(free);
  max_descriptor_ = free >= 0 && options.max_connections < all - free ? free + options.max_connections : all;
  options_ = options;
  serve_ = std::move(serve);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (const int socket : sockets_) close(socket);
  sockets_.clear();
  path_ = nullptr;
  serve_ = nullptr;
}

absl::Duration Listener::deaf() const {
  const int64_t since = deaf_since_.load(std::memory_order_relaxed);
  return since == 0 ? absl::ZeroDuration() : absl::Nanoseconds(MonotonicNanos() - since);
}

void Listener::Run() {
  std::vector<pollfd> polled = {{.fd = wake_, .events = POLLIN, .revents = 0}};
  for (const int socket : sockets_) polled.push_back({.fd = socket, .events = POLLIN, .revents = 0});
  bool accepting = true;
  while (true) {
    // What waits and cannot be accepted would make poll return at once.
    if (poll(polled.data(), accepting ? polled.size() : 1, accepting ? -1 : kPauseMs) < 0 && errno != EINTR) {
      LogError("cannot poll a listening socket", {{"error", std::strerror(errno)}});
      poll(nullptr, 0, kPauseMs);
    }
    if ((polled[0].revents & POLLIN) != 0) return;
    accepting = true;
    for (const int socket : sockets_) accepting = AcceptAll(socket) && accepting;
    if (accepting) {
      deaf_since_.store(0, std::memory_order_relaxed);
    } else if (deaf_since_.load(std::memory_order_relaxed) == 0) {
      deaf_since_.store(MonotonicNanos(), std::memory_order_relaxed);
    }
  }
}

bool Listener::AcceptAll(int socket) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    const int connection = accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (IsOfOneConnection(errno)) continue;
      return false;  // No descriptors, or no memory.
    }
    // The lowest free number is taken, so a high one means that all below are in use.
    if (connection >= max_descriptor_) {
      options_.refused.Increment();  // Before its peer can know.
      close(connection);
      continue;
    }
    const int on = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, &kStalledMs, sizeof(kStalledMs));
    // Otherwise the kernel takes megabytes for peers that read nothing.
    setsockopt(connection, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsent, sizeof(kMostUnsent));
    serve_(connection);
  }
  return true;
}

int RaiseDescriptorLimit() {
  static const int raised = [] {
    rlimit limit = {};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
    LogInfo("file descriptors", {{"limit", absl::StrCat(limit.rlim_cur)}, {"before", absl::StrCat(before)}});
    if (limit.rlim_cur < kFewDescriptors) {
      LogWarning("few file descriptors: every connection takes one; raise the hard limit (ulimit -Hn)",
                 {{"limit", absl::StrCat(limit.rlim_cur)}, {"expected", absl::StrCat(kFewDescriptors)}});
    }
    return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
  }();
  return raised;
}

}  // namespace tandem
