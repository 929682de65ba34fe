#include "common/rpc/grpc_log.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log_queue.h"
#include "gtest/gtest.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {
namespace {

// Protobuf says of every message that it cannot parse why, whatever its version and whatever that logs with.
TEST(GrpcLogTest, WhatAPeerMakesProtobufSayAreAFewLinesOfOurs) {
  TakeGrpcLog();
  v1::GenerateRequest request;
  request.set_text("??");
  std::string bytes = request.SerializeAsString();
  bytes.replace(bytes.find("??"), 2, "\xff\xff");
  constexpr int kMessages = 500;
  const absl::Time begin = absl::Now();
  std::string written;
  // Other tests may have used up this second's lines.
  while (written.empty() && absl::Now() - begin < absl::Seconds(10)) {
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < kMessages; ++i) EXPECT_FALSE(request.ParseFromString(bytes));
    EXPECT_TRUE(FlushLog(absl::Seconds(10)));
    written = ::testing::internal::GetCapturedStderr();
  }
  const int64_t seconds = absl::ToInt64Seconds(absl::Now() - begin) + 2;
  size_t lines = 0;
  for (const absl::string_view line : absl::StrSplit(written, '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::StrContains(line, " warning protobuf ") && absl::StrContains(line, "invalid UTF-8"))
        << line;
    ++lines;
  }
  EXPECT_GT(lines, 0u);
  EXPECT_LE(lines, static_cast<size_t>(10 * seconds));
  EXPECT_LT(lines, static_cast<size_t>(kMessages)) << "on a machine this slow, this says nothing";
}

}  // namespace
}  // namespace tandem
