#include "verifier/rpc/drafter_names.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLongestWait = absl::Seconds(60);

// A name server, and what was told of it.
class DrafterNamesTest : public ::testing::Test {
 protected:
  DrafterNames::Options Options() {
    return {.interval = absl::Milliseconds(5),
            .least_interval = absl::Milliseconds(1),
            .resolve = [this](const DnsName& name) {
              absl::MutexLock lock(&mutex_);
              ++looks_;
              return answers_[name.host];
            }};
  }
  DrafterNames::Callbacks Callbacks() {
    return {.on_members =
                [this](PoolId pool, std::vector<std::string> addresses, const std::string& server_name) {
                  absl::MutexLock lock(&mutex_);
                  members_[pool] = std::move(addresses);
                  server_names_[pool] = server_name;
                },
            .on_gone =
                [this](PoolId) {
                  absl::MutexLock lock(&mutex_);
                  ++gone_;
                }};
  }
  void Answer(const std::string& host, absl::StatusOr<std::vector<std::string>> answer) {
    absl::MutexLock lock(&mutex_);
    answers_[host] = std::move(answer);
  }
  bool WaitForMembers(PoolId pool, std::vector<std::string> expected) {
    const auto there = [&] { return members_[pool] == expected; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kLongestWait);
  }
  bool WaitForLooks(int more) {
    absl::MutexLock lock(&mutex_);
    const int until = looks_ + more;
    const auto there = [&] { return looks_ >= until; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kLongestWait);
  }

  const SystemClock clock_;
  absl::Mutex mutex_;
  std::map<std::string, absl::StatusOr<std::vector<std::string>>> answers_;
  std::map<PoolId, std::vector<std::string>> members_;
  std::map<PoolId, std::string> server_names_;
  int looks_ = 0;
  int gone_ = 0;
};

TEST_F(DrafterNamesTest, FollowsWhoIsBehindAName) {
  Answer("drafters", std::vector<std::string>{"10.0.0.1:7003", "10.0.0.2:7003"});
  DrafterNames names(Options(), Callbacks(), &clock_);
  const PoolId pool = names.Acquire("dns:///drafters:7003").value();
  EXPECT_NE(pool, 0u);
  EXPECT_EQ(names.Acquire("dns:///drafters:7003").value(), pool);
  EXPECT_TRUE(WaitForMembers(pool, {"10.0.0.1:7003", "10.0.0.2:7003"}));
  Answer("drafters", std::vector<std::string>{"10.0.0.3:7003"});
  EXPECT_TRUE(WaitForMembers(pool, {"10.0.0.3:7003"}));
  // A name server that is gone takes nobody away.
  Answer("drafters", absl::UnavailableError("no name server"));
  EXPECT_TRUE(WaitForLooks(3));
  EXPECT_TRUE(WaitForMembers(pool, {"10.0.0.3:7003"}));
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(server_names_[pool], "drafters");
}

TEST_F(DrafterNamesTest, AListIsThereAtOnce) {
  DrafterNames names(Options(), Callbacks(), &clock_);
  const PoolId pool = names.Acquire("ipv4:127.0.0.1:7003,127.0.0.1:7004").value();
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(members_[pool], ElementsAre("127.0.0.1:7003", "127.0.0.1:7004"));
  EXPECT_EQ(looks_, 0);
}

TEST_F(DrafterNamesTest, OneAddressIsNoPool) {
  DrafterNames names(Options(), Callbacks(), &clock_);
  for (const char* endpoint :
       {"drafter:7003", "127.0.0.1:7003", "ipv4:127.0.0.1:7003", "unix:/run/drafter"}) {
    EXPECT_EQ(names.Acquire(endpoint).value(), 0u) << endpoint;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(names.Acquire("dns:///drafters").status()));
}

TEST_F(DrafterNamesTest, NamesAreBoundedAndTheOldestGivesWay) {
  DrafterNames names(Options(), Callbacks(), &clock_);
  for (size_t i = 0; i < DrafterNames::kMostNames + 10; ++i) {
    EXPECT_TRUE(names.Acquire(absl::StrCat("ipv4:127.0.0.1:7003,127.0.0.2:", i + 1)).ok());
  }
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(gone_, 10);
}

}  // namespace
}  // namespace tandem
