#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

// HTTP/2 by hand, for tests of peers that do what no gRPC library would.
namespace tandem::testing {

// A frame whose payload is below 64 KiB.
inline std::string Frame(char kind, char flags, uint32_t stream, absl::string_view payload) {
  std::string frame = {'\0', static_cast<char>(payload.size() >> 8), static_cast<char>(payload.size()), kind,
                       flags};
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return absl::StrCat(frame, payload);
}

// A field of a header list, as a literal of fewer than 127 bytes each.
inline std::string Header(absl::string_view key, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(key.size())), key,
                      std::string(1, static_cast<char>(value.size())), value);
}

// A client that does not read, with a small receive buffer in the kernel, as a hostile client could have.
class DeafClient {
 public:
  explicit DeafClient(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // Much less, and the kernel may drop acknowledgements too, so that both sides stand still.
    const int little = 16384;
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(4, 0, 0, "")));
  }
  ~DeafClient() { close(socket_); }

  // False when the connection is over.
  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t now = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<size_t>(now);
    }
    return true;
  }

  // Whether the connection ends before anything comes: gRPC sends its settings at once.
  bool ReadsNothing() {
    char byte = 0;
    return recv(socket_, &byte, 1, 0) <= 0;
  }

  bool Call(int times) {
    const std::string fields =
        absl::StrCat(Header(":method", "POST"), Header(":scheme", "http"), Header(":path", "/no/such"),
                     Header("te", "trailers"), Header("content-type", "application/grpc"));
    std::string calls;
    for (int i = 0; i < times; ++i) {
      calls += Frame(1, 5, next_stream_, fields);  // END_STREAM and END_HEADERS.
      next_stream_ += 2;
    }
    return Send(calls);
  }

 private:
  const int socket_;
  uint32_t next_stream_ = 1;
};

}  // namespace tandem::testing
