#include "common/base/free_memory.h"

#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/temporary_folder.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr uint64_t kMib = 1 << 20;

// Files of a system, below a folder.
class System {
 public:
  void Write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(root_.PathOf(path)).parent_path());
    root_.Write(path, content);
  }
  std::optional<FreeMemory> Find() const { return FindFreeMemory(root_.path()); }

 private:
  TemporaryFolder root_;
};

TEST(FreeMemoryTest, IsWhatTheMachineHas) {
  System system;
  EXPECT_FALSE(system.Find().has_value());
  system.Write("proc/meminfo", "MemTotal:       8192 kB\nMemFree:  10 kB\nMemAvailable:   4096 kB\n");
  ASSERT_TRUE(system.Find().has_value());
  EXPECT_EQ(system.Find()->bytes, 4 * kMib);
  EXPECT_EQ(system.Find()->of, "the machine");
}

TEST(FreeMemoryTest, IsWhatAControlGroupLeaves) {
  System system;
  system.Write("proc/meminfo", absl::StrCat("MemAvailable: ", 100 * 1024, " kB\n"));
  system.Write("proc/self/cgroup", "0::/pods/one\n");
  system.Write("sys/fs/cgroup/pods/one/memory.max", "max\n");
  system.Write("sys/fs/cgroup/pods/one/memory.current", "5\n");
  EXPECT_EQ(system.Find()->of, "the machine") << "there is no limit";
  // Caches of files that nobody reads do not count as used.
  system.Write("sys/fs/cgroup/pods/memory.max", absl::StrCat(50 * kMib, "\n"));
  system.Write("sys/fs/cgroup/pods/memory.current", absl::StrCat(30 * kMib, "\n"));
  system.Write("sys/fs/cgroup/pods/memory.stat",
               absl::StrCat("anon 1\nfile 2\ninactive_file ", 10 * kMib, "\nactive_file 3\n"));
  EXPECT_EQ(system.Find()->bytes, 30 * kMib);
  EXPECT_EQ(system.Find()->of, "the control group /pods");
  system.Write("sys/fs/cgroup/pods/one/memory.max", absl::StrCat(7 * kMib, "\n"));
  system.Write("sys/fs/cgroup/pods/one/memory.current", absl::StrCat(9 * kMib, "\n"));
  EXPECT_EQ(system.Find()->bytes, 0u);
}

TEST(FreeMemoryTest, KnowsTheFirstVersionOfControlGroups) {
  System system;
  system.Write("proc/meminfo", absl::StrCat("MemAvailable: ", 100 * 1024, " kB\n"));
  system.Write("proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:memory:/docker/0123\n0::/\n");
  // Of a container, where its own group is the root.
  system.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", absl::StrCat(20 * kMib, "\n"));
  system.Write("sys/fs/cgroup/memory/memory.usage_in_bytes", absl::StrCat(5 * kMib, "\n"));
  system.Write("sys/fs/cgroup/memory/memory.stat", absl::StrCat("total_inactive_file ", kMib, "\n"));
  EXPECT_EQ(system.Find()->bytes, 16 * kMib);
  EXPECT_EQ(system.Find()->of, "the control group /");
}

TEST(FreeMemoryTest, ReadsThisSystem) {
  const std::optional<FreeMemory> found = FindFreeMemory();
  ASSERT_TRUE(found.has_value());
  EXPECT_GT(found->bytes, kMib);
}

}  // namespace
}  // namespace tandem
