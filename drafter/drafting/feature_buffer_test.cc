#include "drafter/drafting/feature_buffer.h"

#include <cstring>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kStates = 2;
constexpr uint32_t kWidth = 3;
constexpr size_t kRowBytes = kStates * kWidth * 2;

std::string Bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto half = static_cast<uint16_t>(bits >> 16);
  return std::string(reinterpret_cast<const char*>(&half), sizeof(half));
}

// Rows of positions [first, end): every number of a row is its position.
Features Rows(uint32_t first, uint32_t end) {
  Features features{.first_position = first};
  for (uint32_t position = first; position < end; ++position) {
    for (uint32_t i = 0; i < kStates * kWidth; ++i) features.states += Bf16(static_cast<float>(position));
  }
  return features;
}

float FirstNumber(const FeatureBuffer& buffer, uint32_t position) {
  std::vector<float> row(buffer.row_size());
  EXPECT_TRUE(buffer.Read(position, absl::MakeSpan(row)).ok());
  for (const float number : row) EXPECT_EQ(number, row[0]);
  return row[0];
}

class FeatureBufferTest : public testing::Test {
 protected:
  FeatureBuffer buffer_{kStates, kWidth, FeatureType::kBf16, 8 * kRowBytes};
};

TEST_F(FeatureBufferTest, KeepsRowsInOrderAndTakesWhatIsNewOfWhatComesTwice) {
  buffer_.Restart(5);
  ASSERT_TRUE(buffer_.Add(Rows(5, 8), 100).ok());
  ASSERT_TRUE(buffer_.Add(Rows(5, 8), 100).ok());
  ASSERT_TRUE(buffer_.Add(Rows(3, 6), 100).ok());
  ASSERT_TRUE(buffer_.Add(Rows(6, 10), 100).ok());
  EXPECT_EQ(buffer_.begin(), 5u);
  EXPECT_EQ(buffer_.end(), 10u);
  for (uint32_t position = 5; position < 10; ++position) {
    EXPECT_EQ(FirstNumber(buffer_, position), static_cast<float>(position));
  }
  buffer_.DropBefore(7);
  EXPECT_EQ(buffer_.begin(), 7u);
  EXPECT_EQ(FirstNumber(buffer_, 7), 7.0f);
  EXPECT_EQ(buffer_.num_bytes(), 3 * kRowBytes);
  buffer_.DropBefore(20);
  EXPECT_EQ(buffer_.begin(), 10u);
  EXPECT_EQ(buffer_.end(), 10u);
  buffer_.DropBefore(2);
  EXPECT_EQ(buffer_.begin(), 10u);
}

TEST_F(FeatureBufferTest, StartsOverBehindAGap) {
  buffer_.Restart(0);
  ASSERT_TRUE(buffer_.Add(Rows(0, 2), 100).ok());
  ASSERT_TRUE(buffer_.Add(Rows(4, 6), 100).ok());
  EXPECT_EQ(buffer_.begin(), 4u);
  EXPECT_EQ(buffer_.end(), 6u);
  EXPECT_EQ(FirstNumber(buffer_, 4), 4.0f);
}

TEST_F(FeatureBufferTest, RefusesWhatCannotBe) {
  buffer_.Restart(0);
  ASSERT_TRUE(buffer_.Add(Rows(0, 2), 100).ok());
  Features odd = Rows(2, 4);
  odd.states.pop_back();
  EXPECT_THAT(std::string(buffer_.Add(odd, 100).message()),
              HasSubstr("23 bytes of type 0, expected rows of 12"));
  Features other = Rows(2, 4);
  other.type = FeatureType::kInt8;
  EXPECT_EQ(buffer_.Add(other, 100).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(buffer_.Add(Rows(2, 4), 3).message()),
              HasSubstr("of positions 2 to 3, expected positions below 3"));
  Features last = Rows(0, 1);
  last.first_position = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(buffer_.Add(last, std::numeric_limits<uint32_t>::max()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer_.end(), 2u);
}

TEST_F(FeatureBufferTest, IsBounded) {
  buffer_.Restart(0);
  ASSERT_TRUE(buffer_.Add(Rows(0, 6), 100).ok());
  EXPECT_EQ(buffer_.Add(Rows(6, 9), 100).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(buffer_.num_bytes(), 0u);
}

TEST_F(FeatureBufferTest, TellsOfNumbersThatAreNotFinite) {
  buffer_.Restart(0);
  Features features = Rows(0, 1);
  features.states.replace(4, 2, Bf16(std::numeric_limits<float>::infinity()));
  ASSERT_TRUE(buffer_.Add(features, 100).ok());
  std::vector<float> row(buffer_.row_size());
  EXPECT_EQ(buffer_.Read(0, absl::MakeSpan(row)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FeatureBufferInt8Test, EveryStateHasAScale) {
  FeatureBuffer buffer(2, 2, FeatureType::kInt8, 100);
  Features features{.type = FeatureType::kInt8};
  for (const auto& [scale, a, b] : {std::tuple(0.5f, 4, -3), std::tuple(2.0f, 127, -128)}) {
    features.states.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
    features.states += static_cast<char>(a);
    features.states += static_cast<char>(b);
  }
  ASSERT_TRUE(buffer.Add(features, 1).ok());
  std::vector<float> row(4);
  ASSERT_TRUE(buffer.Read(0, absl::MakeSpan(row)).ok());
  EXPECT_THAT(row, ElementsAre(2.0f, -1.5f, 254.0f, -256.0f));
}

}  // namespace
}  // namespace tandem
