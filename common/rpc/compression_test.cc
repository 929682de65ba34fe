// What a peer that compresses gets: a message is small on the wire and large once it is inflated, and its
// size is looked at only then.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

// Less than a message may have, so that it is the encoding that is refused and not the size.
constexpr size_t kInflatedBytes = size_t{3} << 20;

// A server that answers its only call compressed, whatever its client said that it takes, as gRPC's own
// servers would not: HTTP/2 by hand. The answer is a ServerInfo with version "1".
class CompressingServer {
 public:
  explicit CompressingServer(grpc_compression_algorithm encoding) : encoding_(encoding) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~CompressingServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  static constexpr char kData = 0, kHeaders = 1, kSettings = 4, kPing = 6, kAck = 1, kEndStream = 1,
                        kEndHeaders = 4;

  static std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
    std::string frame;
    for (int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
    frame.push_back(type);
    frame.push_back(flags);
    for (int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
    return frame + payload;
  }
  static std::string Header(const std::string& key, const std::string& value) {
    return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(key.size())), key,
                        std::string(1, static_cast<char>(value.size())), value);
  }
  static bool Receive(int connection, size_t size, std::string* bytes) {
    bytes->resize(size);
    return size == 0 || recv(connection, bytes->data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }

  std::string Answer(uint32_t stream) const {
    using namespace std::string_literals;
    const std::string plain = "\x12\x01\x31"s;
    const std::string gzip =
        "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x13\x62\x34\x04\x00\x77\x9f\x26\xa8\x03\x00\x00\x00"s;
    const std::string deflate = "\x78\x9c\x13\x62\x34\x04\x00\x00\x6c\x00\x45"s;
    const bool compressed = encoding_ != GRPC_COMPRESS_NONE;
    const std::string& message = !compressed ? plain : encoding_ == GRPC_COMPRESS_GZIP ? gzip : deflate;
    std::string headers = "\x88" + Header("content-type", "application/grpc");
    if (compressed) headers += Header("grpc-encoding", encoding_ == GRPC_COMPRESS_GZIP ? "gzip" : "deflate");
    const std::string prefix = {compressed ? '\1' : '\0', 0, 0, 0, static_cast<char>(message.size())};
    return absl::StrCat(Frame(kHeaders, kEndHeaders, stream, headers),
                        Frame(kData, 0, stream, prefix + message),
                        Frame(kHeaders, kEndHeaders | kEndStream, stream, Header("grpc-status", "0")));
  }

  void Serve() {
    const int connection = accept(listener_, nullptr, nullptr);
    if (connection < 0) return;
    const auto send_all = [connection](const std::string& bytes) {
      return send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
    };
    std::string bytes;
    bool good = send_all(Frame(kSettings, 0, 0, "")) && Receive(connection, 24, &bytes);
    while (good && Receive(connection, 9, &bytes)) {
      const auto byte = [&bytes](size_t i) {
        return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i]));
      };
      const uint32_t size = byte(0) << 16 | byte(1) << 8 | byte(2);
      const char type = bytes[3];
      const bool ack = (bytes[4] & kAck) != 0;
      const uint32_t stream = byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8);
      std::string payload;
      if (!Receive(connection, size, &payload)) break;
      if (type == kSettings && !ack) good = send_all(Frame(kSettings, kAck, 0, ""));
      if (type == kPing && !ack) good = send_all(Frame(kPing, kAck, 0, payload));
      if (type == kHeaders) good = send_all(Answer(stream));
    }
    close(connection);
  }

  const grpc_compression_algorithm encoding_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

class CompressionTest : public ::testing::TestWithParam<grpc_compression_algorithm> {
 protected:
  // A call with a field that nobody knows, compressed.
  static grpc::Status Call(const std::string& address, grpc_compression_algorithm encoding) {
    const auto stub = v1::Admin::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    context.set_compression_algorithm(encoding);
    v1::GetServerInfoRequest request;
    request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
        1000, std::string(kInflatedBytes, 'x'));
    v1::ServerInfo info;
    return stub->GetServerInfo(&context, request, &info);
  }
};

TEST_P(CompressionTest, ServersTakeNoCompressedCalls) {
  MetricsRegistry metrics;
  const auto server =
      ServerRunner::Start(
          {.listen_address = "127.0.0.1:0", .metrics = &metrics, .health_address = "127.0.0.1:0"}, {}, {})
          .value();
  EXPECT_TRUE(Call(server->address(), GRPC_COMPRESS_NONE).ok());
  EXPECT_EQ(Call(server->address(), GetParam()).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  // gRPC names the encoding only when it refused it; that this server has no such method it says otherwise.
  const grpc::Status health = Call(absl::StrCat("127.0.0.1:", server->health_port()), GetParam());
  EXPECT_EQ(health.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_NE(health.error_message().find("ompression"), std::string::npos) << health.error_message();
}

TEST_P(CompressionTest, ClientsTakeNoCompressedAnswers) {
  for (const grpc_compression_algorithm encoding : {GRPC_COMPRESS_NONE, GetParam()}) {
    CompressingServer server(encoding);
    const auto stub = v1::Admin::NewStub(tandem::CreateChannel(server.address()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::ServerInfo info;
    const grpc::Status status = stub->GetServerInfo(&context, {}, &info);
    const bool plain = encoding == GRPC_COMPRESS_NONE;
    EXPECT_EQ(status.error_code(), plain ? grpc::StatusCode::OK : grpc::StatusCode::UNIMPLEMENTED)
        << status.error_message();
    EXPECT_EQ(info.version(), plain ? "1" : "");
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, CompressionTest,
                         ::testing::Values(GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP));

}  // namespace
}  // namespace tandem
