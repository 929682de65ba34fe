#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/checked_math.h"
#include "common/base/clock.h"
#include "common/base/core_dumps.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/philox.h"
#include "common/base/temporary_folder.h"
#include "common/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Whose size is told as 0.
std::string ReadProcFile(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(PhiloxTest, MatchesThePublishedVectors) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_THAT(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(CheckedMathTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(CheckedMultiply<uint64_t>(1ull << 32, 1ull << 31), 1ull << 63);
  EXPECT_EQ(CheckedMultiply<uint64_t>(1ull << 32, 1ull << 32), std::nullopt);
  EXPECT_EQ(CheckedAdd<int32_t>(2147483647, 1), std::nullopt);
  EXPECT_EQ(CheckedSubtract<uint32_t>(1, 2), std::nullopt);
}

TEST(HashTest, PrefixHashExtendsTokenByToken) {
  const TokenIds tokens = {5, 0, 4095, 7};
  uint64_t hash = kEmptyPrefixHash;
  for (TokenId token : tokens) hash = ExtendPrefixHash(hash, token);
  EXPECT_EQ(hash, ExtendPrefixHash(kEmptyPrefixHash, tokens));
  EXPECT_NE(ExtendPrefixHash(kEmptyPrefixHash, {0, 5}), ExtendPrefixHash(kEmptyPrefixHash, {5, 0}));
  EXPECT_NE(HashBytes("ab"), HashBytes(absl::string_view("ab\0", 3)));
}

TEST(FileTest, ErrorsNameThePathAndTheLimit) {
  EXPECT_EQ(ReadFile("/nonexistent/file", 10).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadFile("/proc", 10).status().code(), absl::StatusCode::kInvalidArgument);
  const TemporaryFolder folder;
  const std::string path = folder.Write("file", "twelve bytes");
  EXPECT_EQ(*ReadFile(path, 12), "twelve bytes");
  const absl::Status too_long = ReadFile(path, 11).status();
  EXPECT_THAT(std::string(too_long.message()), HasSubstr(path + ": 12 bytes, expected at most 11"));
  EXPECT_EQ(MappedFile::Open(path)->bytes(), "twelve bytes");
}

TEST(CoreDumpsTest, HoldNoMemory) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    KeepMemoryOutOfCoreDumps();
    rlimit limit{};
    const bool good = ::getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max == 0 &&
                      ReadProcFile("/proc/self/coredump_filter") == "00000000\n";
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(FileTest, ReplacesAFileOrLeavesIt) {
  const TemporaryFolder folder;
  const std::string path = folder.PathOf("file");
  ASSERT_TRUE(ReplaceFile(path, "one").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  ASSERT_EQ(::symlink("file", folder.PathOf("link").c_str()), 0);
  ASSERT_TRUE(ReplaceFile(folder.PathOf("link"), "two").ok());
  EXPECT_EQ(*ReadFile(path, 10), "two");
  struct stat info {};
  ASSERT_EQ(::lstat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::lstat(folder.PathOf("link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  EXPECT_TRUE(ReplaceFile("/dev/null", "gone").ok());
  EXPECT_EQ(ReplaceFile("/nonexistent/file", "x").code(), absl::StatusCode::kNotFound);
  // No room for more than a few bytes.
  EXPECT_EQ(ReplaceFile("/dev/full", "x").code(), absl::StatusCode::kUnavailable);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::AnyOf("file", "link"));
  }
}

TEST(Utf8Test, WhatIsNoCharacterIsReplaced) {
  EXPECT_EQ(CleanUtf8(""), "");
  for (const char* good :
       {"plain", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(CleanUtf8(good), good);
  }
  // Stray, cut short, overlong, a surrogate, beyond the last one, and bytes that nothing begins with.
  for (const auto& [bad, num_bytes] :
       {std::pair("\x80", 1), std::pair("\xC2", 1), std::pair("\xE0\xA0", 2), std::pair("\xC0\xAF", 2),
        std::pair("\xE0\x80\x80", 3), std::pair("\xED\xA0\x80", 3), std::pair("\xF0\x80\x80\x80", 4),
        std::pair("\xF4\x90\x80\x80", 4), std::pair("\xF5", 1), std::pair("\xFF", 1)}) {
    std::string expected = "a";
    for (int i = 0; i < num_bytes; ++i) expected += "\xEF\xBF\xBD";
    EXPECT_EQ(CleanUtf8("a" + std::string(bad) + "b"), expected + "b");
  }
  EXPECT_EQ(CleanUtf8("ab\xC3\xA4", 3), "ab") << "cut between characters";
  EXPECT_EQ(CleanUtf8("ab\xC3\xA4", 4), "ab\xC3\xA4");
  EXPECT_EQ(CleanUtf8("a\xFF", 3), "a");
}

TEST(LogTest, AJsonLineIsOneObjectWhateverItsValuesAre) {
  SetLogFormat(LogFormat::kJson);
  ::testing::internal::CaptureStderr();
  LogInfo("request ended", {{"request_id", "a\"b\\\n\x01\xFF"}, {"trace_id", "4bf9"}});
  LogDebug("too fine");
  const std::string line = ::testing::internal::GetCapturedStderr();
  SetLogFormat(LogFormat::kText);
  EXPECT_THAT(line,
              HasSubstr("\"event\":\"request ended\",\"request_id\":\"a\\\"b\\\\\\n\\u0001\xEF\xBF\xBD\","
                        "\"trace_id\":\"4bf9\"}\n"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
}

TEST(ManualClockTest, MovesOnlyWhenTold) {
  ManualClock clock;
  const absl::Time start = clock.Now();
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(2));
}

}  // namespace
}  // namespace tandem
