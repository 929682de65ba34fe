#include "common/rpc/connection_watch.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/testing/raw_http2_fixture.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr UnreadOutput::Id kPeer = 7;

// A peer's counts, tick by tick.
class UnreadOutputTest : public ::testing::Test {
 protected:
  struct Tick {
    uint64_t received = 0;
    uint64_t taken = 0;
    absl::Duration closed = kTick;
    uint64_t unsent = 1000;
    uint32_t backoffs = 0;
  };
  void Pass(const Tick& tick, UnreadOutput::Id peer = kPeer) {
    ConnectionSample& sample = samples_[peer];
    sample.received_bytes += tick.received;
    sample.taken_bytes += tick.taken;
    sample.window_closed += tick.closed;
    sample.unsent_bytes = tick.unsent;
    sample.backoffs = tick.backoffs;
    unread_.Observe(peer, sample, kTick);
  }

  UnreadOutput unread_{{.max_debt_bytes = 1000, .max_total_debt_bytes = 2500}};
  std::map<UnreadOutput::Id, ConnectionSample> samples_;
};

TEST_F(UnreadOutputTest, APeerThatSendsAndTakesNothingIsCutOnce) {
  Pass({.received = 1 << 20});  // When it began to take nothing is not known.
  EXPECT_TRUE(unread_.TakeCut().empty());
  Pass({.received = 1000});
  EXPECT_TRUE(unread_.TakeCut().empty());
  Pass({.received = 1});
  EXPECT_EQ(unread_.TakeCut(), std::vector<UnreadOutput::Id>{kPeer});
  EXPECT_TRUE(unread_.TakeCut().empty());
}

TEST_F(UnreadOutputTest, WhoeverReadsOrOnlyWaitsIsNotCut) {
  for (int i = 0; i < 1000; ++i) {
    Pass({.received = 0}, 1);                                        // Stopped.
    Pass({.received = 1 << 20, .closed = absl::ZeroDuration()}, 2);  // A slow line, or much output.
    Pass({.received = 1 << 20, .closed = kTick / 2 - absl::Milliseconds(1)}, 3);
    Pass({.received = 1 << 20, .unsent = 0}, 4);                    // Nothing waits.
    Pass({.received = 900, .unsent = i % 2 == 0 ? 1000u : 0u}, 5);  // Nothing does every other time.
    Pass({.received = 800, .taken = 6400}, 6);                      // It takes what it is answered.
    ASSERT_TRUE(unread_.TakeCut().empty()) << i;
  }
}

// With a TCP of its own a peer can keep its window open, and acknowledge nothing.
TEST_F(UnreadOutputTest, APeerThatSendsAndAcknowledgesNothingIsCut) {
  Tick silent = {.received = 500, .closed = absl::ZeroDuration()};
  for (int i = 0; i < 10; ++i) {
    silent.backoffs = i / 4;  // Two from the eighth on.
    Pass(silent);
    EXPECT_TRUE(unread_.TakeCut().empty()) << i;
  }
  Pass(silent);
  EXPECT_EQ(unread_.TakeCut(), std::vector<UnreadOutput::Id>{kPeer});
}

TEST_F(UnreadOutputTest, APeerIsHeardForLongBeforeItAcknowledgesAfterAnOutage) {
  const absl::Duration open = absl::ZeroDuration();
  for (int outage = 0; outage < 100; ++outage) {
    for (uint32_t backoffs = 0; backoffs < 4; ++backoffs) Pass({.closed = open, .backoffs = backoffs});
    for (int i = 0; i < 15; ++i) Pass({.received = 100'000, .closed = open, .backoffs = 3});
    Pass({.received = 100'000, .closed = open, .backoffs = 4});  // One more is lost.
    Pass({.received = 100'000, .taken = 100, .closed = open, .backoffs = 4});
    // Whoever takes something, or sends nothing, is not silent.
    Pass({.received = 100'000, .taken = 1, .closed = open, .backoffs = 9});
    Pass({.closed = open, .backoffs = 20});
    ASSERT_TRUE(unread_.TakeCut().empty()) << outage;
    Pass({.taken = 1, .closed = open});
  }
}

TEST_F(UnreadOutputTest, TakingALittleDoesNotPayForMuch) {
  int ticks = 0;
  for (Pass({}); unread_.TakeCut().empty() && ticks < 100; ++ticks) Pass({.received = 800, .taken = 800});
  EXPECT_EQ(ticks, 2);
}

TEST_F(UnreadOutputTest, AllTogetherHaveABoundAndThoseWithMostPay) {
  for (UnreadOutput::Id peer = 0; peer < 4; ++peer) Pass({}, peer);
  for (UnreadOutput::Id peer = 0; peer < 4; ++peer)
    Pass({.received = 600 + peer * 100}, peer);  // 3,000 in all.
  EXPECT_EQ(unread_.TakeCut(), std::vector<UnreadOutput::Id>{3});
  EXPECT_TRUE(unread_.TakeCut().empty());
  unread_.Forget(2);
  Pass({.received = 400}, 0);
  Pass({.received = 300}, 1);
  EXPECT_TRUE(unread_.TakeCut().empty()) << "2,000 of two";
}

TEST_F(UnreadOutputTest, WithoutABoundNobodyIsCut) {
  UnreadOutput unread({});
  ConnectionSample sample{.unsent_bytes = 1};
  for (int i = 0; i < 10; ++i) {
    sample.received_bytes += 1 << 20;
    sample.window_closed += kTick;
    unread.Observe(kPeer, sample, kTick);
    EXPECT_TRUE(unread.TakeCut().empty());
  }
}

TEST(ConnectionWatchTest, AClientThatCallsAndDoesNotReadIsCut) {
  MetricsRegistry metrics;
  const auto server = ServerRunner::Start(
                          // As many calls as it likes: what is looked at here is all that there is with TLS.
                          {.listen_address = "127.0.0.1:0",
                           .metrics = &metrics,
                           .limits = {.max_streams = 1'000'000, .unread_kib = 64}},
                          {}, {})
                          .value();
  testing::DeafClient client(server->port());
  // 64 KiB are 600 calls; before, its answers fill what kernels take. Much less than would take half a
  // minute.
  const absl::Time end = absl::Now() + absl::Seconds(60);
  bool cut = false;
  while (!cut && absl::Now() < end) {
    cut = !client.Call(10);
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(cut);
  const std::string series = "\ntandem_server_cut_connections_total{reason=\"unread\"} 1";
  while (metrics.Expose().find(series) == std::string::npos && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_NE(metrics.Expose().find(series), std::string::npos);
  // Others are served, whose descriptor may have the same number.
  const auto stub = v1::Admin::NewStub(CreateChannel(server->address()));
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
}

}  // namespace
}  // namespace tandem
