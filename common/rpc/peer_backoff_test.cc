#include "common/rpc/peer_backoff.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include "gtest/gtest.h"

namespace tandem {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

sockaddr_storage V6(const char* text) {
  sockaddr_storage storage = {};
  auto& address = reinterpret_cast<sockaddr_in6&>(storage);
  address.sin6_family = AF_INET6;
  EXPECT_EQ(inet_pton(AF_INET6, text, &address.sin6_addr), 1);
  return storage;
}

sockaddr_storage V4(const char* text) {
  sockaddr_storage storage = {};
  auto& address = reinterpret_cast<sockaddr_in&>(storage);
  address.sin_family = AF_INET;
  EXPECT_EQ(inet_pton(AF_INET, text, &address.sin_addr), 1);
  return storage;
}

TEST(PeerAddressTest, IsTheSameByEveryName) {
  const auto v4 = PeerAddressOf(V4("192.0.2.7"));
  ASSERT_TRUE(v4.has_value());
  EXPECT_EQ(PeerAddressOf(V6("::ffff:192.0.2.7")), v4);
  EXPECT_EQ(PeerAddressOf("ipv4:192.0.2.7:4321"), v4);
  EXPECT_EQ(PeerAddressOf("ipv6:%5B::ffff:192.0.2.7%5D:4321"), v4);
  EXPECT_NE(PeerAddressOf(V4("192.0.2.8")), v4);
  EXPECT_EQ(PeerAddressOf(V6("::1")), PeerAddressOf(V4("127.0.0.1")));
}

TEST(PeerAddressTest, OfIpv6IsTheNetwork) {
  const auto v6 = PeerAddressOf(V6("2001:db8:1:2::1"));
  ASSERT_TRUE(v6.has_value());
  EXPECT_EQ(PeerAddressOf(V6("2001:db8:1:2:ffff::9")), v6);
  EXPECT_NE(PeerAddressOf(V6("2001:db8:1:3::1")), v6);
  EXPECT_EQ(PeerAddressOf("ipv6:%5B2001:db8:1:2::5%5D:80"), v6);
  EXPECT_EQ(PeerAddressOf("ipv6:[2001:db8:1:2::5]:80"), v6);
  EXPECT_EQ(PeerAddressOf("ipv6:%5Bfe80::1%25eth0%5D:80"), PeerAddressOf(V6("fe80::1")));
}

TEST(PeerAddressTest, OthersHaveNone) {
  sockaddr_storage local = {};
  local.ss_family = AF_UNIX;
  EXPECT_FALSE(PeerAddressOf(local).has_value());
  for (const char* peer :
       {"", "unix:/run/x", "unix:", "ipv4:", "ipv4:x:1", "ipv4:1.2.3:4", "ipv6:%5Bzz%5D:1", "inproc:1"}) {
    EXPECT_FALSE(PeerAddressOf(absl::string_view(peer)).has_value()) << peer;
  }
}

TEST(PeerBackoffTest, PausesDoubleUpToTheLongest) {
  PeerBackoff backoff({.first = absl::Seconds(1), .longest = absl::Seconds(5)});
  EXPECT_FALSE(backoff.Refuses(1, kStart));
  absl::Time now = kStart;
  for (const int pause : {1, 2, 4, 5, 5}) {
    backoff.OnCut(1, now);
    EXPECT_TRUE(backoff.Refuses(1, now + absl::Seconds(pause) - absl::Milliseconds(1)));
    now += absl::Seconds(pause);
    EXPECT_FALSE(backoff.Refuses(1, now)) << pause;
  }
  EXPECT_FALSE(backoff.Refuses(2, kStart)) << "another address";
  // Years later too, however often it was.
  for (int i = 0; i < 100; ++i) backoff.OnCut(1, now);
  EXPECT_FALSE(backoff.Refuses(1, now + absl::Seconds(5)));
}

TEST(PeerBackoffTest, ForgetsAfterAWhile) {
  PeerBackoff backoff({.first = absl::Seconds(1), .longest = absl::Seconds(60), .memory = absl::Minutes(1)});
  for (int i = 0; i < 5; ++i) backoff.OnCut(1, kStart);
  EXPECT_TRUE(backoff.Refuses(1, kStart + absl::Seconds(15)));
  const absl::Time later = kStart + absl::Minutes(2);
  backoff.OnCut(1, later);
  EXPECT_TRUE(backoff.Refuses(1, later));
  EXPECT_FALSE(backoff.Refuses(1, later + absl::Seconds(1)));
}

TEST(PeerBackoffTest, WhereKnownCallersCallFromNobodyIsRefused) {
  PeerBackoff backoff({.memory = absl::Minutes(1)});
  backoff.OnKnownCaller(1, kStart);
  backoff.OnCut(1, kStart);
  EXPECT_FALSE(backoff.Refuses(1, kStart));
  // They have been silent for long.
  const absl::Time later = kStart + absl::Minutes(2);
  backoff.OnCut(1, later);
  EXPECT_TRUE(backoff.Refuses(1, later));
  backoff.OnKnownCaller(1, later);
  EXPECT_FALSE(backoff.Refuses(1, later));
}

TEST(PeerBackoffTest, MemoryIsBounded) {
  PeerBackoff backoff({.max_addresses = 3});
  for (const PeerAddress address : {1, 2, 3}) backoff.OnCut(address, kStart);
  backoff.OnCut(1, kStart);
  backoff.OnCut(4, kStart);
  EXPECT_FALSE(backoff.Refuses(2, kStart)) << "was unseen for longest";
  for (const PeerAddress address : {1, 3, 4}) EXPECT_TRUE(backoff.Refuses(address, kStart)) << address;
  PeerBackoff none({.longest = absl::ZeroDuration()});
  none.OnCut(1, kStart);
  EXPECT_FALSE(none.Refuses(1, kStart));
}

}  // namespace
}  // namespace tandem
