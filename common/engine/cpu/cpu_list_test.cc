#include "common/engine/cpu/cpu_list.h"

#include <sched.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/thread_team.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CpuList, NamesCpusAndRangesInOrder) {
  EXPECT_THAT(ParseCpuList("0").value(), ElementsAre(0));
  EXPECT_THAT(ParseCpuList("0-3,8").value(), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(ParseCpuList("8,2-2,5-6").value(), ElementsAre(8, 2, 5, 6));
  EXPECT_THAT(ParseCpuList("8191").value(), ElementsAre(8191));
}

TEST(CpuList, SaysWhatIsWrong) {
  for (const char* list : {"", ",", "0,", ",1", "a", "1-", "-1", "1--2", "1-2-3", "3-1", " 1", "1 ", "+1",
                           "0x1", "8192", "0-8192", "99999999999999999999", "1;2"}) {
    const auto cpus = ParseCpuList(list);
    EXPECT_EQ(cpus.status().code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(std::string(cpus.status().message()), HasSubstr("as in 0-3,8")) << list;
  }
  EXPECT_THAT(std::string(ParseCpuList("0-3,2").status().message()), HasSubstr("CPU 2 twice"));
}

TEST(CpuList, GivesEveryThreadACpuItMayUse) {
  const std::vector<int> allowed = AllowedCpus().value();
  ASSERT_FALSE(allowed.empty());
  const std::string first = absl::StrCat(allowed.front());
  EXPECT_THAT(CpusForThreads("", 3).value(), ElementsAre());
  EXPECT_THAT(CpusForThreads(first, 1).value(), ElementsAre(allowed.front()));
  EXPECT_THAT(std::string(CpusForThreads(first, 2).status().message()), HasSubstr("1 CPUs for 2 threads"));
  EXPECT_THAT(std::string(CpusForThreads("8191", 1).status().message()),
              HasSubstr(absl::StrCat("this machine has ", sysconf(_SC_NPROCESSORS_CONF))));
}

TEST(CpuList, KnowsTheAffinityMask) {
  const std::vector<int> allowed = AllowedCpus().value();
  if (allowed.size() < 2) GTEST_SKIP() << "needs two CPUs";
  {
    const CallerPin pin(allowed[0]);
    EXPECT_THAT(AllowedCpus().value(), ElementsAre(allowed[0]));
    EXPECT_THAT(std::string(CpusForThreads(absl::StrCat(allowed[1]), 1).status().message()),
                HasSubstr(absl::StrCat("affinity mask, which allows ", allowed[0])));
  }
  EXPECT_EQ(AllowedCpus().value(), allowed);
  const CallerPin none(-1);
  EXPECT_EQ(AllowedCpus().value(), allowed);
}

TEST(CpuList, ATeamRunsWhereItIsPinned) {
  const std::vector<int> allowed = AllowedCpus().value();
  const std::vector<int> cpus = {allowed.back(), allowed.front()};
  const auto team = ThreadTeam::Create(2, cpus).value();
  for (int run = 0; run < 10; ++run) {
    std::vector<int> ran_on(2);
    team->Run([&](int thread) { ran_on[static_cast<size_t>(thread)] = sched_getcpu(); });
    EXPECT_EQ(ran_on, cpus);
  }
  // A thread that the caller starts may run anywhere.
  EXPECT_EQ(AllowedCpus().value(), allowed);
}

TEST(CpuList, ATeamNeedsCpusThatItMayUse) {
  EXPECT_EQ(ThreadTeam::Create(2, {0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ThreadTeam::Create(2, {0, 8191}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
