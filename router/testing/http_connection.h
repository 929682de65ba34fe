#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace tandem::router::testing {

// A TCP connection to a port of this machine, which sends and reads raw bytes.
class HttpConnection {
 public:
  // How long to wait for an answer. Only failing tests wait that long.
  static constexpr int kPatienceSeconds = 30;

  explicit HttpConnection(int port, const std::string& request = "")
      : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience = {.tv_sec = kPatienceSeconds, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_TRUE(Send(request));
  }
  ~HttpConnection() { Close(); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Reads until the bytes since the last call contain `word`, and returns them all; fewer if the connection
  // ends.
  std::string ReadUntil(absl::string_view word) {
    while (!absl::StrContains(received_, word) && ReadMore()) {
    }
    return std::exchange(received_, "");
  }
  std::string ReadAll() {
    while (ReadMore()) {
    }
    return std::exchange(received_, "");
  }
  // Returns whether the bytes could be sent.
  bool Send(const std::string& more) {
    return send(socket_, more.data(), more.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(more.size());
  }
  void Close() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }

 private:
  bool ReadMore() {
    char buffer[4096];
    const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
    if (count > 0) received_.append(buffer, static_cast<size_t>(count));
    return count > 0;
  }

  int socket_;
  std::string received_;
};

}  // namespace tandem::router::testing
