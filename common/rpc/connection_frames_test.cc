#include "common/rpc/connection_frames.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/peer_backoff.h"
#include "common/rpc/peer_limits.h"
#include "common/rpc/server.h"
#include "common/rpc/testing/raw_http2_fixture.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

using testing::DeafClient;
using testing::Frame;

constexpr size_t kMostCalls = 1000;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr char kData = 0, kHeaders = 1, kReset = 3, kContinuation = 9, kEndHeaders = 4, kEndStream = 1;

absl::Span<const uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

bool Receives(ConnectionFrames& frames, absl::string_view text) {
  return frames.Receive(Bytes(text), kMostCalls);
}

bool TakesAll(absl::string_view text) {
  return ConnectionFrames().Receive(Bytes(text), kMostCalls);
}

TEST(ConnectionFramesTest, WhatHonestPeersSend) {
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
  ConnectionFrames pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t size = 1 + random() % 700;
    ASSERT_TRUE(Receives(pieces, absl::string_view(text).substr(at, size)));
    at += size;
  }
  ConnectionFrames bytes;
  for (const char byte : text) ASSERT_TRUE(Receives(bytes, absl::string_view(&byte, 1)));
}

TEST(ConnectionFramesTest, ListsThatAreTooLongOrInTooManyPieces) {
  const std::string begin = absl::StrCat(kPreface, Frame(kHeaders, 0, 1, std::string(16384, 'h')));
  EXPECT_TRUE(TakesAll(begin));
  EXPECT_FALSE(TakesAll(absl::StrCat(begin, Frame(kContinuation, 0, 1, std::string(16385, 'h')))));
  // The length alone is enough: nothing of a frame of 16 MiB is waited for.
  const std::string huge = {'\x7f', '\x7f', '\x7f', kHeaders, 0, 0, 0, 0, 1};
  EXPECT_FALSE(TakesAll(absl::StrCat(kPreface, huge)));
  ConnectionFrames bounds;
  EXPECT_TRUE(Receives(bounds, absl::StrCat(kPreface, Frame(kHeaders, 0, 1, ""))));
  for (size_t i = 1; i < ConnectionFrames::kMostFrames; ++i) {
    ASSERT_TRUE(Receives(bounds, Frame(kContinuation, 0, 1, "h")));
  }
  EXPECT_FALSE(Receives(bounds, Frame(kContinuation, 0, 1, "h")));
}

TEST(ConnectionFramesTest, CallsAreOpenUntilTheyAreAnsweredOrReset) {
  ConnectionFrames bounds;
  ASSERT_TRUE(Receives(bounds, kPreface));
  for (uint32_t stream = 1; stream < 20; stream += 2) {
    ASSERT_TRUE(
        Receives(bounds, absl::StrCat(Frame(kHeaders, kEndHeaders, stream, "h"), Frame(kData, 0, stream, "d"),
                                      Frame(kHeaders, kEndHeaders | kEndStream, stream, "trailers"))));
  }
  EXPECT_EQ(bounds.num_calls(), 10u);
  // However often, and whoever does it.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Receives(bounds, Frame(kReset, 0, 5, "1234")));
  bounds.Send(Bytes(Frame(kReset, 0, 5, "1234")));
  EXPECT_EQ(bounds.num_calls(), 9u);
  // Headers and messages do not end a call, in whatever pieces they go.
  const std::string answer = absl::StrCat(Frame(4, 0, 0, "123456"), Frame(kHeaders, kEndHeaders, 1, "h"),
                                          Frame(kData, 0, 1, "message"), Frame(kData, 0, 3, "message"));
  for (const char byte : answer) bounds.Send(Bytes(absl::string_view(&byte, 1)));
  EXPECT_EQ(bounds.num_calls(), 9u);
  EXPECT_EQ(bounds.num_sent_messages(), 2u);
  const std::string ends = absl::StrCat(Frame(kHeaders, kEndHeaders | kEndStream, 1, "trailers"),
                                        Frame(kReset, 0, 1, "1234"), Frame(kData, kEndStream, 3, ""));
  for (const char byte : ends) bounds.Send(Bytes(absl::string_view(&byte, 1)));
  EXPECT_EQ(bounds.num_calls(), 7u);
}

TEST(ConnectionFramesTest, CallsBeyondTheBound) {
  ConnectionFrames bounds;
  std::string calls = kPreface;
  for (uint32_t stream = 1; stream < 2 * kMostCalls; stream += 2) {
    calls += Frame(kHeaders, kEndHeaders | kEndStream, stream, "h");
  }
  ASSERT_TRUE(Receives(bounds, calls));
  bounds.Send(Bytes(Frame(kReset, 0, 7, "1234")));
  EXPECT_TRUE(Receives(bounds, Frame(kHeaders, kEndHeaders, 2 * kMostCalls + 1, "h")));
  EXPECT_FALSE(Receives(bounds, Frame(kHeaders, kEndHeaders, 2 * kMostCalls + 3, "h")));
  EXPECT_TRUE(bounds.too_many_calls());
}

TEST(ConnectionFramesTest, FramesThatCarryNothingAreCounted) {
  const std::string eight(8, '\0');
  ConnectionFrames bounds;
  ASSERT_TRUE(Receives(bounds, absl::StrCat(kPreface, Frame(4, 0, 0, ""))));
  EXPECT_EQ(bounds.num_idle_frames(), 1u);
  // A call with a message, acknowledgements, windows.
  ASSERT_TRUE(Receives(bounds, absl::StrCat(Frame(kHeaders, kEndHeaders, 1, "h"), Frame(kData, 0, 1, "d"),
                                            Frame(kData, 1, 1, ""), Frame(4, 1, 0, ""), Frame(6, 1, 0, eight),
                                            Frame(8, 0, 1, "1234"), Frame(7, 0, 0, eight))));
  EXPECT_EQ(bounds.num_idle_frames(), 1u);
  // A ping, a reset, a priority, empty data, a frame of no known type.
  ASSERT_TRUE(
      Receives(bounds, absl::StrCat(Frame(6, 0, 0, eight), Frame(3, 0, 1, "1234"), Frame(2, 0, 1, "12345"),
                                    Frame(kData, 0, 1, ""), Frame(99, 0, 0, "x"))));
  EXPECT_EQ(bounds.num_idle_frames(), 6u);
}

TEST(ConnectionFramesTest, BytesThatAreNoHttp2AreForGrpc) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string noise(1000, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    (void)TakesAll(noise);  // Either is right; nothing is read beyond it.
  }
}

void WaitUntilCut(const MetricsRegistry& metrics, absl::string_view reason) {
  const absl::Time end = absl::Now() + absl::Seconds(60);
  const std::string series = absl::StrCat("\ntandem_server_cut_connections_total{reason=\"", reason, "\"} 1");
  while (metrics.Expose().find(series) == std::string::npos && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_NE(metrics.Expose().find(series), std::string::npos);
}

// Those that honest clients send at most go on; see also tests/hostile.
TEST(ConnectionFramesTest, AServerCutsPingsWithoutEnd) {
#ifdef TANDEM_THREAD_SANITIZED
  GTEST_SKIP() << "recvmsg is the sanitizer's";
#endif
  MetricsRegistry metrics;
  const auto server =
      ServerRunner::Start(
          {.listen_address = "127.0.0.1:0", .metrics = &metrics, .limits = {.max_streams = 16}}, {}, {})
          .value();
  // What gRPC itself cuts are pings; settings and priorities it takes.
  const std::string settings = absl::StrCat(Frame(4, 0, 0, ""), Frame(2, 0, 1, "12345"));
  DeafClient few(server->port());
  std::string burst;
  for (int i = 0; i < 100; ++i) burst += settings;
  ASSERT_TRUE(few.Send(burst));
  DeafClient many(server->port());
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (many.Send(settings) && absl::Now() < end) {
  }
  WaitUntilCut(metrics, "idle");
  EXPECT_TRUE(few.Send(settings));
  EXPECT_FALSE(many.Send(settings));
}

// True when the server has closed the connection of somebody who has just connected, and sent nothing on it.
bool IsRefused(const ServerRunner& server) {
  DeafClient client(server.port());
  return client.ReadsNothing();
}

TEST(ConnectionFramesTest, WhoseConnectionWasCutMayNotConnectAgainForAWhile) {
#ifdef TANDEM_THREAD_SANITIZED
  GTEST_SKIP() << "recvmsg is the sanitizer's";
#endif
  MetricsRegistry metrics;
  const auto backoff = std::make_shared<PeerBackoff>(
      PeerBackoff::Options{.first = absl::Minutes(10), .longest = absl::Minutes(10)});
  const auto server = ServerRunner::Start({.listen_address = "127.0.0.1:0",
                                           .metrics = &metrics,
                                           .limits = {.max_streams = 16},
                                           .backoff = backoff},
                                          {}, {})
                          .value();
  EXPECT_FALSE(IsRefused(*server));
  DeafClient client(server->port());
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (client.Call(100) && absl::Now() < end) {
  }
  WaitUntilCut(metrics, "unread");
  EXPECT_TRUE(IsRefused(*server));
  EXPECT_NE(metrics.Expose().find("\ntandem_server_backed_off_connections_total 1"), std::string::npos);
  // Somebody else there is known.
  backoff->OnKnownCaller(PeerAddressOf(absl::string_view("ipv4:127.0.0.1:1")).value(), absl::Now());
  EXPECT_FALSE(IsRefused(*server));
}

// Of this build's gRPC, whichever it is: the connection is cut by it, or before it.
TEST(ConnectionFramesTest, AServerCutsAHeaderThatDoesNotEnd) {
#ifdef TANDEM_THREAD_SANITIZED
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
  WaitUntilCut(metrics, "header");
}

}  // namespace
}  // namespace tandem
