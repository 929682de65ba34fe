#include "verifier/process/policy_file.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// As whoever deploys does it: the new file replaces the old one in one go.
void Replace(const std::string& path, const std::string& content) {
  std::ofstream(path + ".new") << content;
  std::filesystem::rename(path + ".new", path);
}

TEST(PolicyFileWatchTest, TellsOfChangesThatCanBeUnderstood) {
  const std::string path = ::testing::TempDir() + "/policy_file_watch.json";
  Replace(path, R"({"policy": "fsm"})");
  absl::Notification changed;
  std::string policy;
  const PolicyFileWatch watch(path, R"({"policy": "goodput"})", absl::Milliseconds(1),
                              [&](const WindowPolicyFile& file) {
                                if (changed.HasBeenNotified()) return;
                                policy = file.policy;
                                changed.Notify();
                              });
  ASSERT_TRUE(changed.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(policy, "fsm");
}

TEST(PolicyFileWatchTest, KeepsWhatItHadWhenAFileIsWrong) {
  const std::string path = ::testing::TempDir() + "/policy_file_wrong.json";
  Replace(path, "{");
  absl::Notification changed;
  std::string policy;
  const PolicyFileWatch watch(path, "{}", absl::Milliseconds(1), [&](const WindowPolicyFile& file) {
    if (changed.HasBeenNotified()) return;
    policy = file.policy;
    changed.Notify();
  });
  EXPECT_FALSE(changed.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  Replace(path, R"({"policy": "fixed"})");
  ASSERT_TRUE(changed.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(policy, "fixed");
}

}  // namespace
}  // namespace tandem
