#include "router/state/etcd/etcd_address.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(EtcdAddressTest, ReadsEndpointsAndPrefix) {
  const auto one = ParseEtcdAddress("etcd://127.0.0.1:2379/tandem");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(one->endpoints, ElementsAre("127.0.0.1:2379"));
  EXPECT_EQ(one->prefix, "/tandem/v1/");
  const auto three = ParseEtcdAddress("etcd://etcd-0.etcd:2379,[fd00::1]:2379,e_2:1/a.b/c-d_e/");
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_THAT(three->endpoints, ElementsAre("etcd-0.etcd:2379", "[fd00::1]:2379", "e_2:1"));
  EXPECT_EQ(three->prefix, "/a.b/c-d_e/v1/");
}

TEST(EtcdAddressTest, SaysWhatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"etcd:/x", "not an etcd"},
      {"etcd://host:2379", "there is no prefix"},
      {"etcd://host:2379/", "there is no prefix"},
      {"etcd://host:2379//", "there is no prefix"},
      {"etcd:///tandem", "\"\" is not host:port"},
      {"etcd://host/tandem", "\"host\" is not host:port"},
      {"etcd://host:/tandem", "\"host:\" is not host:port"},
      {"etcd://:2379/tandem", "\":2379\" is not host:port"},
      {"etcd://host:0/tandem", "is not host:port"},
      {"etcd://host:65536/tandem", "is not host:port"},
      {"etcd://fd00::1:2379/tandem", "is not host:port"},
      {"etcd://[fd00::1:2379/tandem", "is not host:port"},
      {"etcd://a:1,,b:1/tandem", "\"\" is not host:port"},
      {"etcd://a:1,a:1/tandem", "\"a:1\" occurs twice"},
      {"etcd://a b:1/tandem", "is not host:port"},
      {"etcd://a:1/tan dem", "other characters"},
      {"etcd://a:1/tandem//x", "other characters"},
      {"etcd://a:1/" + std::string(300, 'x'), "other characters"},
  };
  for (const auto& [uri, message] : cases) {
    const auto address = ParseEtcdAddress(uri);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_THAT(address.status().message(), HasSubstr(message)) << uri;
  }
}

TEST(EtcdAddressTest, ErrorsAreShortAndPrintable) {
  const auto address = ParseEtcdAddress("etcd://" + std::string(100'000, '\7') + ":1/tandem");
  EXPECT_THAT(address.status().message(), HasSubstr("\"etcd://\\x07"));
  EXPECT_THAT(address.status().message(), HasSubstr("...\" is not host:port"));
  EXPECT_LT(address.status().message().size(), 2000);
}

TEST(EtcdAddressTest, PasswordsAreNotRepeated) {
  const auto address = ParseEtcdAddress("etcd://root:hunter2@host:2379/tandem");
  EXPECT_THAT(address.status().message(), HasSubstr("--state-password-file"));
  EXPECT_THAT(address.status().message(), Not(HasSubstr("hunter2")));
}

}  // namespace
}  // namespace tandem::router
