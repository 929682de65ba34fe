#include "drafter/drafting/stop_head.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kHiddenSize = 12;

std::string HeadFolder() {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/drafter/testdata/stop-head");
}

TEST(StopHeadTest, GivesTheReferenceProbabilities) {
  const auto head = StopHead::LoadIfPresent(HeadFolder(), kHiddenSize);
  ASSERT_TRUE(head.ok()) << head.status();
  ASSERT_NE(*head, nullptr);
  const auto text = ReadFile(absl::StrCat(HeadFolder(), "/golden.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  float least = 1.0f;
  float most = 0.0f;
  for (const nlohmann::json& one : nlohmann::json::parse(*text)) {
    const float acceptance = (*head)->Acceptance(one["state"].get<std::vector<float>>());
    EXPECT_NEAR(acceptance, one["acceptance"].get<float>(), 1e-5);
    least = std::min(least, acceptance);
    most = std::max(most, acceptance);
  }
  EXPECT_LT(least, 0.4f);
  EXPECT_GT(most, 0.6f);
}

TEST(StopHeadTest, WhatIsNotANumberIsNotAccepted) {
  const auto head = StopHead::LoadIfPresent(HeadFolder(), kHiddenSize);
  ASSERT_TRUE(head.ok()) << head.status();
  const std::vector<float> broken(kHiddenSize, std::numeric_limits<float>::quiet_NaN());
  const float acceptance = (*head)->Acceptance(broken);
  EXPECT_GT(acceptance, 0.0f);
  EXPECT_LT(acceptance, 1e-30f);
}

TEST(StopHeadTest, AFolderNeedNotHaveOne) {
  const auto head = StopHead::LoadIfPresent(testing::TempDir(), kHiddenSize);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(*head, nullptr);
}

// Spoilt copies of the file.
class BadStopHeadTest : public testing::Test {
 protected:
  BadStopHeadTest() : folder_(absl::StrCat(testing::TempDir(), "/bad-stop-head")) {
    std::filesystem::create_directories(folder_);
    bytes_ = ReadFile(absl::StrCat(HeadFolder(), "/", StopHead::kFileName), 1 << 20).value();
  }
  ~BadStopHeadTest() override { std::filesystem::remove_all(folder_); }

  absl::Status Load(const std::string& bytes, int32_t hidden_size = kHiddenSize) {
    std::ofstream(absl::StrCat(folder_, "/", StopHead::kFileName), std::ios::binary) << bytes;
    return StopHead::LoadIfPresent(folder_, hidden_size).status();
  }

  const std::string folder_;
  std::string bytes_;
};

TEST_F(BadStopHeadTest, IsRefused) {
  const absl::Status other_model = Load(bytes_, 16);
  EXPECT_EQ(other_model.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other_model.message()),
              HasSubstr("tensor layers.0.weight has the shape [12, 12], expected [16, 16]"));
  EXPECT_THAT(std::string(other_model.message()), HasSubstr(StopHead::kFileName));

  const absl::Status nameless = Load(absl::StrReplaceAll(bytes_, {{"output.bias", "output.bios"}}));
  EXPECT_EQ(nameless.code(), absl::StatusCode::kNotFound) << nameless;
  EXPECT_THAT(std::string(nameless.message()), HasSubstr("output.bias"));

  const absl::Status gap = Load(absl::StrReplaceAll(bytes_, {{"layers.1.", "layers.2."}}));
  EXPECT_EQ(gap.code(), absl::StatusCode::kInvalidArgument) << gap;
  EXPECT_THAT(std::string(gap.message()), HasSubstr("without a gap"));

  EXPECT_FALSE(Load(bytes_.substr(0, bytes_.size() - 4)).ok());
  EXPECT_FALSE(Load("").ok());
}

}  // namespace
}  // namespace tandem
