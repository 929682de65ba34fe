#include <cstdio>
#include <fstream>

#include "common/base/checked_math.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  const std::string path = ::testing::TempDir() + "/base_test_file";
  std::ofstream(path) << "twelve bytes";
  EXPECT_EQ(*ReadFile(path, 12), "twelve bytes");
  const absl::Status too_long = ReadFile(path, 11).status();
  EXPECT_THAT(std::string(too_long.message()), HasSubstr(path + ": 12 bytes, expected at most 11"));
  EXPECT_EQ(MappedFile::Open(path)->bytes(), "twelve bytes");
  std::remove(path.c_str());
}

TEST(ManualClockTest, MovesOnlyWhenTold) {
  ManualClock clock;
  const absl::Time start = clock.Now();
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(2));
}

}  // namespace
}  // namespace tandem
