#include "common/rpc/dns_name.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(DnsNameTest, ReadsNames) {
  const auto name = ParseDnsName("dns:///verifier.tandem.svc:7002");
  ASSERT_TRUE(name.ok() && name->has_value()) << name.status();
  EXPECT_EQ((*name)->host, "verifier.tandem.svc");
  EXPECT_EQ((*name)->port, "7002");
  for (const char* other : {"verifier:7002", "127.0.0.1:7002", "ipv4:127.0.0.1:7002", "unix:/run/verifier"}) {
    const auto none = ParseDnsName(other);
    EXPECT_TRUE(none.ok() && !none->has_value()) << other;
  }
}

TEST(DnsNameTest, SaysWhatIsWrong) {
  for (const char* wrong :
       {"dns:", "dns:verifier:7002", "dns://8.8.8.8/verifier:7002", "dns:///", "dns:///verifier",
        "dns:///verifier:", "dns:///:7002", "dns:///verifier:0", "dns:///verifier:65536",
        "dns:///ver ifier:7002", "dns:///[::1]:7002", "dns:///a,b:7002"}) {
    const auto name = ParseDnsName(wrong);
    EXPECT_EQ(name.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(name.status().message(), HasSubstr("expected \"dns:///host:port\"")) << wrong;
  }
}

TEST(DnsNameTest, AsksTheSystem) {
  const auto local = ResolveBySystem({.host = "localhost", .port = "7002"});
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_THAT(*local, Contains("127.0.0.1:7002"));
  EXPECT_THAT(*local, Each(EndsWith(":7002")));
  // A top level that is reserved for names that are none.
  const auto none = ResolveBySystem({.host = "verifier.invalid", .port = "7002"});
  EXPECT_FALSE(none.ok());
  EXPECT_THAT(none.status().message(), HasSubstr("\"verifier.invalid\""));
}

}  // namespace
}  // namespace tandem
