#include "common/rpc/peer_address.h"

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(PeerAddressTest, IsTheSameByEveryName) {
  const auto v4 = PeerAddressOf("ipv4:192.0.2.7:4321");
  EXPECT_EQ(v4, 0xc0000207u);
  EXPECT_EQ(PeerAddressOf("ipv6:%5B::ffff:192.0.2.7%5D:4321"), v4);
  EXPECT_NE(PeerAddressOf("ipv4:192.0.2.8:4321"), v4);
  EXPECT_EQ(PeerAddressOf("ipv6:%5B::1%5D:1"), PeerAddressOf("ipv4:127.0.0.1:1"));
}

TEST(PeerAddressTest, OfIpv6IsTheNetwork) {
  const auto v6 = PeerAddressOf("ipv6:%5B2001:db8:1:2::5%5D:80");
  EXPECT_EQ(v6, 0x20010db800010002u);
  EXPECT_EQ(PeerAddressOf("ipv6:[2001:db8:1:2:ffff::9]:81"), v6);
  EXPECT_NE(PeerAddressOf("ipv6:[2001:db8:1:3::5]:80"), v6);
  EXPECT_EQ(PeerAddressOf("ipv6:%5Bfe80::1%25eth0%5D:80"), PeerAddressOf("ipv6:[fe80::1]:80"));
}

TEST(PeerAddressTest, OthersHaveNone) {
  for (const char* peer :
       {"", "unix:/run/x", "unix:", "ipv4:", "ipv4:x:1", "ipv4:1.2.3:4", "ipv6:%5Bzz%5D:1", "inproc:1"}) {
    EXPECT_FALSE(PeerAddressOf(peer).has_value()) << peer;
  }
}

}  // namespace
}  // namespace tandem
