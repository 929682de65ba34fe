#include "common/base/reserved_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace tandem {
namespace {

TEST(ReservedMemoryTest, IsZeroUntilWrittenAndMoves) {
  // More than most machines have: only what is written counts.
  constexpr uint64_t kBytes = uint64_t{1} << 38;
  absl::StatusOr<ReservedMemory> reserved = ReservedMemory::Reserve(kBytes);
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  auto* const bytes = static_cast<uint8_t*>(reserved->data());
  EXPECT_EQ(reserved->size(), kBytes);
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[kBytes - 1], 0);
  bytes[kBytes / 2] = 7;

  ReservedMemory moved = *std::move(reserved);
  EXPECT_EQ(static_cast<uint8_t*>(moved.data())[kBytes / 2], 7);
  ReservedMemory other;
  other = std::move(moved);
  EXPECT_EQ(static_cast<uint8_t*>(other.data())[kBytes / 2], 7);
}

TEST(ReservedMemoryTest, RefusesWhatNoAddressSpaceHolds) {
  EXPECT_EQ(ReservedMemory::Reserve(UINT64_MAX / 2).status().code(), absl::StatusCode::kResourceExhausted);
  const absl::StatusOr<ReservedMemory> none = ReservedMemory::Reserve(0);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->data(), nullptr);
}

}  // namespace
}  // namespace tandem
