#include "common/base/log_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// A pipe whose reader reads when it is told to.
class StalledPipe {
 public:
  StalledPipe() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~StalledPipe() {
    CloseReader();
    close(ends_[1]);
  }
  int write_end() const { return ends_[1]; }
  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  // Reads until a line contains `last`. Returns everything.
  std::vector<std::string> ReadUntil(const std::string& last) {
    std::string text;
    char buffer[4096];
    while (text.find(last + "\n") == std::string::npos) {
      const ssize_t got = read(ends_[0], buffer, sizeof(buffer));
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

 private:
  int ends_[2] = {-1, -1};
};

LogQueue::Options OptionsFor(const StalledPipe& pipe) {
  return {.fd = pipe.write_end(), .max_bytes = 200'000, .describe_dropped = [](uint64_t count) {
            return absl::StrCat("dropped ", count, "\n");
          }};
}

TEST(LogQueueTest, AReaderThatStallsHoldsUpNobodyAndIsToldWhatItMissed) {
  StalledPipe pipe;
  LogQueue queue(OptionsFor(pipe));
  // Several times what pipe and queue hold: without a queue this would wait for ever.
  constexpr int kLines = 20'000;
  const std::string padding(90, 'x');
  for (int i = 0; i < kLines; ++i) queue.Push(absl::StrCat(i, " ", padding, "\n"));
  const uint64_t dropped = queue.dropped();
  EXPECT_GT(dropped, 0u);
  EXPECT_LE(queue.pending_bytes(), 200'000u);
  EXPECT_FALSE(queue.Flush(absl::Milliseconds(1)));
  std::thread later([&queue] {
    // There is room as soon as the reader goes on.
    while (queue.pending_bytes() > 100'000) std::this_thread::yield();
    queue.Push("end\n");
  });
  const std::vector<std::string> lines = pipe.ReadUntil("end");
  later.join();
  EXPECT_TRUE(queue.Flush(absl::Seconds(30)));
  // Each line is there or counted by the line in its place.
  uint64_t next = 0;
  for (absl::string_view line : lines) {
    uint64_t number = 0;
    if (line == "end") break;
    if (absl::ConsumePrefix(&line, "dropped ")) {
      ASSERT_TRUE(absl::SimpleAtoi(line, &number));
      next += number;
    } else {
      EXPECT_EQ(line, absl::StrCat(next++, " ", padding));
    }
  }
  EXPECT_EQ(next, static_cast<uint64_t>(kLines));
  EXPECT_EQ(queue.dropped(), dropped);
}

TEST(LogQueueTest, LinesOfAThreadKeepTheirOrder) {
  StalledPipe pipe;
  LogQueue queue({.fd = pipe.write_end(), .max_bytes = size_t{1} << 24});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&queue, thread] {
      for (int i = 0; i < 1000; ++i) queue.Push(absl::StrCat(thread, " ", i, "\n"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  queue.Push(absl::StrCat(std::string(70'000, 'x'), "\n"));  // More than a pipe takes at once.
  queue.Push("end\n");
  std::vector<int> next(4, 0);
  for (const std::string& line : pipe.ReadUntil("end")) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int thread = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &thread)) continue;
    EXPECT_EQ(words[1], absl::StrCat(next.at(static_cast<size_t>(thread))++));
  }
  EXPECT_EQ(next, std::vector<int>(4, 1000));
  EXPECT_EQ(queue.dropped(), 0u);
}

TEST(LogQueueTest, AReaderThatIsGoneOrStallsForGoodDoesNotKeepTheQueueFromEnding) {
  StalledPipe gone;
  {
    LogQueue queue(OptionsFor(gone));
    gone.CloseReader();
    queue.Push("nobody\n");
    EXPECT_TRUE(queue.Flush(absl::Seconds(30)));
    EXPECT_EQ(queue.dropped(), 1u);
  }
  StalledPipe stalled;
  LogQueue queue(OptionsFor(stalled));
  for (int i = 0; i < 2000; ++i) queue.Push(std::string(99, 'y') + "\n");
}

using LogQueueDeathTest = ::testing::Test;

TEST(LogQueueDeathTest, WhatWasLoggedIsWrittenHoweverTheProcessEnds) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto log_and = [](const auto& end) {
    QueueLogLines();
    for (int i = 0; i < 500; ++i) LogInfo("a line", {{"number", absl::StrCat(i)}});
    LogError("last words");
    end();
  };
  const char* const expected = "number=499\n.*last words";
  EXPECT_EXIT(log_and([] { std::exit(3); }), ::testing::ExitedWithCode(3), expected);
  EXPECT_EXIT(log_and([] { std::abort(); }), ::testing::KilledBySignal(SIGABRT), expected);
  EXPECT_EXIT(log_and([] {
                if (fork() == 0) {
                  LogInfo("a child's line");
                  _exit(0);
                }
                std::exit(0);
              }),
              ::testing::ExitedWithCode(0), "a child's line");
}

}  // namespace
}  // namespace tandem
