#include "router/testing/sse_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::router::testing {

SseClient::SseClient(int port, const std::string& token, const std::string& body)
    : port_(port),
      request_(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer ", token,
                            "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                            body)),
      epoll_(epoll_create1(0)),
      wake_(eventfd(0, 0)) {
  epoll_event event = {.events = EPOLLIN, .data = {.fd = wake_}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
  thread_ = std::thread([this] { Run(); });
}

SseClient::~SseClient() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
  thread_.join();
  absl::MutexLock lock(&mutex_);
  for (const auto& [socket, stream] : streams_) close(socket);
  for (const int socket : idle_) close(socket);
  close(wake_);
  close(epoll_);
}

void SseClient::Start(Callbacks callbacks) {
  auto stream = std::make_unique<Stream>();
  stream->callbacks = std::move(callbacks);
  int socket = -1;
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      socket = idle_.back();
      idle_.pop_back();
    }
  }
  const bool fresh = socket < 0;
  if (fresh) socket = Open();
  if (socket < 0) return stream->callbacks.on_done(false, 0);
  {
    absl::MutexLock lock(&mutex_);
    streams_[socket] = std::move(stream);
  }
  if (fresh) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = socket}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event);
  }
  // What cannot be sent ends as a stream that breaks.
  send(socket, request_.data(), request_.size(), MSG_NOSIGNAL);
}

int SseClient::Open() {
  const int opened = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(opened, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(opened);
    return -1;
  }
  const int one = 1;
  setsockopt(opened, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return opened;
}

void SseClient::Run() {
  std::vector<epoll_event> events(256);
  while (true) {
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const int socket = events[i].data.fd;
      if (socket == wake_) return;
      Stream* stream = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        const auto found = streams_.find(socket);
        if (found != streams_.end()) stream = found->second.get();
      }
      // Without a request there is nothing to come but the connection's end.
      const bool goes_on = stream != nullptr && Read(socket, *stream);
      if (goes_on) continue;
      std::unique_ptr<Stream> over;
      {
        absl::MutexLock lock(&mutex_);
        if (stream != nullptr) {
          over = std::move(streams_[socket]);
          streams_.erase(socket);
        }
        if (over != nullptr && over->done) {
          idle_.push_back(socket);
        } else {
          std::erase(idle_, socket);
          close(socket);
        }
      }
      if (over != nullptr) over->callbacks.on_done(over->served && over->done, over->chunks);
    }
  }
}

bool SseClient::Read(int socket, Stream& stream) {
  char buffer[16384];
  const ssize_t count = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) return false;
  stream.line.append(buffer, static_cast<size_t>(count));
  size_t begin = 0;
  bool over = false;
  for (size_t end; (end = stream.line.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const absl::string_view line(stream.line.data() + begin, end - begin);
    OnLine(line, stream);
    // The last chunk of the transfer coding, which is empty.
    over = over || (stream.done && line == "0\r");
  }
  stream.line.erase(0, begin);
  // Whole with the empty line behind it.
  if (over && !stream.line.empty()) over = false;
  return !over;
}

void SseClient::OnLine(absl::string_view line, Stream& stream) {
  if (absl::StartsWith(line, "HTTP/1.1 200")) stream.served = true;
  if (!absl::StartsWith(line, "data: ")) return;
  if (absl::StrContains(line, "[DONE]")) stream.done = true;
  if (!absl::StrContains(line, "\"finish_reason\":null")) return;
  if (stream.chunks++ == 0) stream.callbacks.on_first();
}

}  // namespace tandem::router::testing
