#include "common/rpc/header_bounds.h"

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/peer_limits.h"
#include "common/rpc/raw_http2_fixture.h"
#include "common/rpc/server.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

using testing::DeafClient;
using testing::Frame;

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr char kData = 0, kHeaders = 1, kContinuation = 9, kEndHeaders = 4;

absl::Span<const uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

bool TakesAll(absl::string_view text) {
  return HeaderBounds().Take(Bytes(text));
}

TEST(HeaderBoundsTest, WhatHonestPeersSend) {
  std::string text = absl::StrCat(kPreface, Frame(4, 0, 0, ""));
  for (uint32_t stream = 1; stream < 400; stream += 2) {
    absl::StrAppend(&text, Frame(kHeaders, kEndHeaders, stream, std::string(300, 'h')));
    for (int i = 0; i < 4; ++i) absl::StrAppend(&text, Frame(kData, 0, stream, std::string(16384, '\x09')));
  }
  // Trailers, and the longest list there may be.
  absl::StrAppend(&text, Frame(kHeaders, kEndHeaders | 1, 1, std::string(16384, 'h')));
  absl::StrAppend(&text, Frame(kHeaders, 0, 401, std::string(16384, 'h')),
                  Frame(kContinuation, kEndHeaders, 401, std::string(16384, 'h')));
  EXPECT_TRUE(TakesAll(text));
  // However it comes.
  std::mt19937 random(5);
  HeaderBounds pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t size = 1 + random() % 700;
    ASSERT_TRUE(pieces.Take(Bytes(absl::string_view(text).substr(at, size))));
    at += size;
  }
  HeaderBounds bytes;
  for (const char byte : text) ASSERT_TRUE(bytes.Take(Bytes(absl::string_view(&byte, 1))));
}

TEST(HeaderBoundsTest, ListsThatAreTooLongOrInTooManyPieces) {
  const std::string begin = absl::StrCat(kPreface, Frame(kHeaders, 0, 1, std::string(16384, 'h')));
  EXPECT_TRUE(TakesAll(begin));
  EXPECT_FALSE(TakesAll(absl::StrCat(begin, Frame(kContinuation, 0, 1, std::string(16385, 'h')))));
  // The length alone is enough: nothing of a frame of 16 MiB is waited for.
  const std::string huge = {'\x7f', '\x7f', '\x7f', kHeaders, 0, 0, 0, 0, 1};
  EXPECT_FALSE(TakesAll(absl::StrCat(kPreface, huge)));
  HeaderBounds bounds;
  EXPECT_TRUE(bounds.Take(Bytes(absl::StrCat(kPreface, Frame(kHeaders, 0, 1, "")))));
  for (size_t i = 1; i < HeaderBounds::kMostFrames; ++i) {
    ASSERT_TRUE(bounds.Take(Bytes(Frame(kContinuation, 0, 1, "h"))));
  }
  EXPECT_FALSE(bounds.Take(Bytes(Frame(kContinuation, 0, 1, "h"))));
}

TEST(HeaderBoundsTest, CallsAreCounted) {
  HeaderBounds bounds;
  ASSERT_TRUE(bounds.Take(Bytes(kPreface)));
  for (uint32_t stream = 1; stream < 20; stream += 2) {
    ASSERT_TRUE(bounds.Take(
        Bytes(absl::StrCat(Frame(kHeaders, kEndHeaders, stream, "h"), Frame(kData, 0, stream, "d"),
                           Frame(kHeaders, kEndHeaders | 1, stream, "trailers")))));
  }
  EXPECT_EQ(bounds.num_calls(), 10u);
  ASSERT_TRUE(bounds.Take(Bytes(Frame(3, 0, 5, "1234"))));
  EXPECT_EQ(bounds.num_calls(), 9u);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(bounds.Take(Bytes(Frame(3, 0, 5, "1234"))));
  EXPECT_EQ(bounds.num_calls(), 0u);
}

TEST(HeaderBoundsTest, BytesThatAreNoHttp2AreForGrpc) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string noise(1000, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    (void)TakesAll(noise);  // Either is right; nothing is read beyond it.
  }
}

// Of this build's gRPC, whichever it is: the connection is cut by it, or before it.
TEST(HeaderBoundsTest, AServerCutsAHeaderThatDoesNotEnd) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "recvmsg is the sanitizer's";
#endif
  MetricsRegistry metrics;
  const auto server =
      ServerRunner::Start({.listen_address = "127.0.0.1:0", .metrics = &metrics}, {}, {}).value();
  DeafClient client(server->port());
  // A literal of a gigabyte, of which some bytes come at a time.
  std::string piece = absl::StrCat(std::string("\x00\x01x\x7f", 4), "\xff\xff\xff\x03");
  ASSERT_TRUE(client.Send(Frame(kHeaders, 0, 1, piece)));
  const absl::Time end = absl::Now() + absl::Seconds(15);  // Half of what gRPC's keepalive would take.
  bool cut = false;
  while (!cut && absl::Now() < end) {
    cut = !client.Send(Frame(kContinuation, 0, 1, std::string(100, 'a')));
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(cut);
  const auto stub = v1::Admin::NewStub(CreateChannel(server->address()));
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  if (BoundsHeaderLists(grpc::Version())) return;
  const absl::Time counted = absl::Now() + absl::Seconds(60);
  const std::string series = "\ntandem_server_cut_connections_total{reason=\"header\"} 1";
  while (metrics.Expose().find(series) == std::string::npos && absl::Now() < counted) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_NE(metrics.Expose().find(series), std::string::npos);
}

}  // namespace
}  // namespace tandem
