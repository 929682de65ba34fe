#include "bench/load_bench.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

TEST(LoadBenchTest, MeasuresReadingAndLoading) {
  const LoadBenchOptions options = {
      .path = absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-draft-general-1m"),
      .threads = 2,
      .repetitions = 2,
      .cold = true};
  const auto result = RunLoadBench(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->file_bytes, 2'000'000u);
  EXPECT_GT(result->packed_bytes, 1'000'000u);
  EXPECT_GT(result->read.fastest, 0);
  EXPECT_GT(result->read_by_one.fastest, 0);
  EXPECT_GT(result->open.fastest, 0);
  EXPECT_GT(result->pack.fastest, 0);
  EXPECT_GT(result->write.fastest, 0);
  EXPECT_GE(result->load.fastest, result->open.fastest);
  EXPECT_GE(result->load.median, result->load.fastest);
  EXPECT_THAT(LoadBenchTable(options, *result), HasSubstr("load / read by 2 |"));
}

TEST(LoadBenchTest, SaysWhatItCannotLoad) {
  const auto message = [](const std::string& path) {
    return std::string(RunLoadBench({.path = path}).status().message());
  };
  EXPECT_THAT(message(absl::StrCat(TANDEM_SOURCE_DIR, "/docs")),
              HasSubstr("expected a GGUF file, or a folder"));
  EXPECT_THAT(message("/nowhere"), HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace tandem
