#include "bench/serve/request_record.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Time kStart = absl::UnixEpoch();

absl::Time At(double milliseconds) {
  return kStart + absl::Milliseconds(milliseconds);
}

v1::GenerateResponse Chunk(uint32_t offset, const std::vector<uint32_t>& tokens, const std::string& text) {
  v1::GenerateResponse event;
  event.mutable_chunk()->set_offset(offset);
  event.mutable_chunk()->set_text(text);
  event.mutable_chunk()->mutable_tokens()->Add(tokens.begin(), tokens.end());
  return event;
}

v1::GenerateResponse Finished() {
  v1::GenerateResponse event;
  event.mutable_finished()->set_reason(v1::FINISH_REASON_MAX_TOKENS);
  event.mutable_finished()->set_text("!");
  event.mutable_finished()->mutable_speculation()->set_rounds(3);
  return event;
}

TEST(RequestRecordTest, KeepsWhatCameAndWhen) {
  RequestRecorder recorder(kStart);
  v1::GenerateResponse started;
  started.mutable_started()->set_prompt_tokens(5);
  recorder.Add(started, At(1));
  recorder.Add(Chunk(0, {1}, "a"), At(10));
  v1::GenerateResponse traced = Chunk(1, {2, 3}, "b");
  traced.mutable_chunk()->mutable_round()->set_depth(4);
  traced.mutable_chunk()->mutable_round()->set_kind(v1::ROUND_KIND_HIT);
  recorder.Add(traced, At(16));
  recorder.Add(Chunk(3, {4}, ""), At(20));
  recorder.Add(Finished(), At(20));
  const RequestRecord record = recorder.End(absl::OkStatus(), At(25));
  EXPECT_TRUE(record.status.ok());
  EXPECT_THAT(record.tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(record.text, "ab!");
  EXPECT_DOUBLE_EQ(record.first_token_seconds(), 0.010);
  EXPECT_DOUBLE_EQ(record.total_seconds, 0.025);
  EXPECT_DOUBLE_EQ(record.tokens_per_second(), 160.0);
  EXPECT_THAT(record.ChunkGaps(), ElementsAre(DoubleNear(0.006, 1e-9), DoubleNear(0.004, 1e-9)));
  EXPECT_THAT(record.TokenGaps(),
              ElementsAre(DoubleNear(0.003, 1e-9), DoubleNear(0.003, 1e-9), DoubleNear(0.004, 1e-9)));
  const nlohmann::json json = record.ToJson();
  EXPECT_EQ(json["prompt_tokens"], 5);
  EXPECT_EQ(json["finish_reason"], "max_tokens");
  EXPECT_EQ(json["rounds"][0]["depth"], 4);
  EXPECT_EQ(json["rounds"][0]["kind"], "hit");
  EXPECT_EQ(json["chunks"].size(), 3u);
  EXPECT_FALSE(json.contains("error"));
}

TEST(RequestRecordTest, NoticesWhatIsMissing) {
  RequestRecorder unfinished(kStart);
  unfinished.Add(Chunk(0, {1}, "a"), At(1));
  EXPECT_EQ(unfinished.End(absl::OkStatus(), At(2)).status.code(), absl::StatusCode::kDataLoss);

  RequestRecorder gap(kStart);
  gap.Add(Chunk(0, {1}, "a"), At(1));
  gap.Add(Chunk(2, {1}, "a"), At(1));
  gap.Add(Finished(), At(1));
  EXPECT_EQ(gap.End(absl::OkStatus(), At(2)).status.code(), absl::StatusCode::kDataLoss);

  RequestRecorder empty_chunk(kStart);
  empty_chunk.Add(Chunk(0, {}, "a"), At(1));
  empty_chunk.Add(Finished(), At(1));
  EXPECT_FALSE(empty_chunk.End(absl::OkStatus(), At(2)).status.ok());

  RequestRecorder failed(kStart);
  const RequestRecord record = failed.End(absl::UnavailableError("gone"), At(2));
  EXPECT_EQ(record.status, absl::UnavailableError("gone"));
  EXPECT_EQ(record.first_token_seconds(), 0.0);
  EXPECT_THAT(record.ToJson()["error"].get<std::string>(), HasSubstr("gone"));
}

}  // namespace
}  // namespace tandem::bench
