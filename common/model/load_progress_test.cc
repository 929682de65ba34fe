#include "common/model/load_progress.h"

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class LoadProgressTest : public ::testing::Test {
 protected:
  LoadProgress::Options Options(bool terminal) {
    return {.terminal = terminal,
            .clock = &clock_,
            .draw = [this](absl::string_view text) { output_.emplace_back(text); },
            .log = [this](absl::string_view text) { output_.emplace_back(text); }};
  }

  ManualClock clock_;
  std::vector<std::string> output_;
};

TEST_F(LoadProgressTest, LogsEveryThreeSecondsWhatIsDoneAndLeft) {
  LoadProgress progress("m", 100'000'000, Options(/*terminal=*/false));
  for (int percent = 1; percent <= 4; ++percent) {
    clock_.Advance(absl::Seconds(1));
    ASSERT_TRUE(progress.Add(1'000'000).ok());
  }
  EXPECT_THAT(output_, ElementsAre("m 3% 3.0 MB of 100.0 MB 1.0 MB/s, left: 97 s"));
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(progress.Add(8'000'000).ok());
  ASSERT_TRUE(progress.Add(30'000'000).ok());
  EXPECT_EQ(output_.size(), 2u);
  progress.Finish();
  EXPECT_THAT(output_, ElementsAre("m 3% 3.0 MB of 100.0 MB 1.0 MB/s, left: 97 s",
                                   "m 12% 12.0 MB of 100.0 MB 2.0 MB/s, left: 44 s",
                                   "m 100% 100.0 MB of 100.0 MB 16.7 MB/s, left: 0 s"));
}

TEST_F(LoadProgressTest, RedrawsOneLineOnATerminal) {
  {
    LoadProgress progress("model", 2'000'000'000, Options(/*terminal=*/true));
    clock_.Advance(absl::Seconds(1));
    ASSERT_TRUE(progress.Add(500'000'000).ok());
    ASSERT_TRUE(progress.Add(1).ok());  // Within 100 ms of the line before: not drawn.
    EXPECT_THAT(
        output_,
        ElementsAre("\rmodel [######..................]  25% 500.0 MB of 2.00 GB 500.0 MB/s 3 s left"));
    clock_.Advance(absl::Seconds(1));
    progress.Finish();
    progress.Finish();
    ASSERT_TRUE(progress.Add(1).ok());
  }
  ASSERT_EQ(output_.size(), 3u);
  EXPECT_THAT(output_[1],
              StartsWith("\rmodel [########################] 100% 2.00 GB of 2.00 GB 1000.0 MB/s"));
  EXPECT_EQ(output_[2], "\n");
}

TEST_F(LoadProgressTest, LoadingStopsWhenItShould) {
  LoadProgress progress("m", 200, Options(/*terminal=*/false));
  bool stopped = false;
  progress.StopWhen([&] { return stopped; });
  EXPECT_TRUE(progress.Add(10).ok());
  stopped = true;
  const absl::Status status = progress.Add(64);
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(status.message(), "the loading of m was stopped at 37 %");
  progress.StopWhen(nullptr);
  EXPECT_TRUE(progress.Add(1).ok());
}

TEST_F(LoadProgressTest, EndsTheLineWhenLoadingFails) {
  {
    LoadProgress progress("model", 10, Options(/*terminal=*/true));
    ASSERT_TRUE(progress.Add(1).ok());
  }
  EXPECT_EQ(output_.back(), "\n");
}

TEST_F(LoadProgressTest, TheRatioIsMonotoneAndNeverAboveOne) {
  LoadProgress progress("m", 4, Options(/*terminal=*/false));
  EXPECT_EQ(progress.ratio(), 0.0);
  ASSERT_TRUE(progress.Add(1).ok());
  EXPECT_EQ(progress.ratio(), 0.25);
  ASSERT_TRUE(progress.Add(~uint64_t{0}).ok());
  EXPECT_EQ(progress.ratio(), 1.0);
  ASSERT_TRUE(progress.Add(1).ok());
  EXPECT_EQ(progress.ratio(), 1.0);

  LoadProgress empty("m", 0, Options(/*terminal=*/false));
  ASSERT_TRUE(empty.Add(3).ok());
  EXPECT_EQ(empty.ratio(), 0.0);
  empty.Finish();
  EXPECT_EQ(empty.ratio(), 1.0);
  EXPECT_THAT(output_.back(), HasSubstr("100%"));
}

}  // namespace
}  // namespace tandem
