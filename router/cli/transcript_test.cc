#include "router/cli/transcript.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::GenerateResponse Parse(const std::string& text) {
  v1::GenerateResponse event;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &event)) << text;
  return event;
}

const absl::Time kBegin = absl::FromUnixSeconds(100);

Transcript Example() {
  Transcript transcript(kBegin);
  transcript.Add(
      Parse(R"pb(started { request_id: "r1" model: "big" seed: 18446744073709551615 drafter: "code" })pb"),
      kBegin + absl::Milliseconds(5));
  transcript.Add(
      Parse(R"pb(chunk {
                   tokens: 4
                   tokens: 5
                   text: "he"
                   details { source: TOKEN_SOURCE_ACCEPTED draft_source: DRAFT_SOURCE_LOCAL logprob: -0.5 }
                   details {
                     source: TOKEN_SOURCE_TARGET
                     logprob: -1.5
                     top_logprobs { token: 9 logprob: -0.25 }
                   }
                 })pb"),
      kBegin + absl::Milliseconds(20));
  transcript.Add(Parse(R"pb(finished {
                              reason: FINISH_REASON_MAX_TOKENS
                              text: "y"
                              usage { prompt_tokens: 3 completion_tokens: 2 cached_prompt_tokens: 1 }
                              speculation {
                                drafter: "code"
                                rounds: 1
                                drafted_rounds: 1
                                draft_tokens: 4
                                accepted_tokens: 1
                                mean_acceptance_length: 2
                                draft_acceptance_rate: 0.25
                                accepted_per_position: 1
                                by_source {
                                  source: DRAFT_SOURCE_DRAFTER
                                  drafter: "code"
                                  drafted_rounds: 1
                                  draft_tokens: 3
                                }
                                by_source {
                                  source: DRAFT_SOURCE_LOCAL
                                  drafter: "code"
                                  drafted_rounds: 1
                                  draft_tokens: 1
                                  accepted_tokens: 1
                                  accepted_per_position: 1
                                  draft_acceptance_rate: 1
                                }
                                merged_rounds: 1
                              }
                            })pb"),
                 kBegin + absl::Milliseconds(40));
  transcript.End(kBegin + absl::Milliseconds(50));
  return transcript;
}

TEST(TranscriptTest, Json) {
  const nlohmann::json json = nlohmann::json::parse(DumpJson(Example().ToJson(true, absl::OkStatus())));
  EXPECT_EQ(json["request_id"], "r1");
  EXPECT_EQ(json["model"], "big");
  EXPECT_EQ(json["seed"], 18446744073709551615u);
  EXPECT_EQ(json["tokens"], (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(json["sources"], (std::vector<std::string>{"accepted", "target"}));
  EXPECT_EQ(json["text"], "hey");
  EXPECT_EQ(json["finish_reason"], "max_tokens");
  EXPECT_EQ(json["usage"]["cached_prompt_tokens"], 1);
  EXPECT_EQ(json["speculation"]["draft_tokens"], 4);
  EXPECT_EQ(json["speculation"]["accepted_tokens"], 1);
  EXPECT_EQ(json["draft_sources"], (std::vector<std::string>{"local", ""}));
  EXPECT_EQ(json["speculation"]["drafted_rounds"], 1);
  EXPECT_EQ(json["speculation"]["merged_rounds"], 1);
  EXPECT_EQ(json["speculation"]["by_source"][0]["source"], "drafter");
  EXPECT_EQ(json["speculation"]["by_source"][0]["drafter"], "code");
  EXPECT_EQ(json["speculation"]["by_source"][0]["draft_tokens"], 3);
  EXPECT_EQ(json["speculation"]["by_source"][1]["source"], "local");
  EXPECT_EQ(json["speculation"]["by_source"][1]["accepted_tokens"], 1);
  EXPECT_DOUBLE_EQ(json["timings"]["total_seconds"], 0.05);
  EXPECT_DOUBLE_EQ(json["timings"]["time_to_first_token_seconds"], 0.02);
  EXPECT_DOUBLE_EQ(json["timings"]["tokens_per_second"], 40.0);
  EXPECT_EQ(json["logprobs"][1]["token"], 5);
  EXPECT_EQ(json["logprobs"][1]["top"][0]["token"], 9);
  EXPECT_FALSE(json.contains("error"));
}

TEST(TranscriptTest, JsonOfAFailureKeepsWhatCame) {
  const nlohmann::json json = Example().ToJson(false, absl::UnavailableError("lost"));
  EXPECT_EQ(json["text"], "hey");
  EXPECT_EQ(json["error"]["code"], "UNAVAILABLE");
  EXPECT_EQ(json["error"]["message"], "lost");
  EXPECT_FALSE(json.contains("logprobs"));
}

TEST(TranscriptTest, StatsForPeople) {
  const std::string stats = Example().DescribeStats();
  EXPECT_THAT(stats, HasSubstr("drafter      code\n"));
  EXPECT_THAT(stats, HasSubstr("2, after a prompt of 3 (1 from the cache); ended by max_tokens\n"));
  EXPECT_THAT(stats, HasSubstr("1 of 4 draft tokens (25.0%), length 2.00"));
  EXPECT_THAT(stats, HasSubstr("  code       0 of 3 draft tokens (0.0%), 1 drafted rounds\n"));
  EXPECT_THAT(stats, HasSubstr("  local      1 of 1 draft tokens (100.0%), 1 drafted rounds\n"));
  EXPECT_THAT(stats, HasSubstr("after 20 ms\n"));
  EXPECT_THAT(stats, HasSubstr("40.0 tokens/s (50 ms in all)\n"));
  EXPECT_THAT(stats, Not(HasSubstr("drafter lost")));
}

TEST(TranscriptTest, StatsNameWhoDraftedAtTheEnd) {
  Transcript transcript = Example();
  transcript.Add(Parse(R"pb(finished { speculation { drafter: "math" } })pb"), kBegin);
  EXPECT_THAT(transcript.DescribeStats(), HasSubstr("drafter      code, at the end math\n"));
}

TEST(TranscriptTest, NothingCame) {
  Transcript transcript(kBegin);
  transcript.End(kBegin);
  EXPECT_EQ(transcript.TokensPerSecond(), 0.0);
  EXPECT_EQ(transcript.TimeToFirstToken(), absl::ZeroDuration());
  EXPECT_THAT(transcript.DescribeStats(), HasSubstr("drafter      none\n"));
}

TEST(EventJsonTest, Kinds) {
  EXPECT_EQ(EventJson(Parse(R"pb(started { model: "big" prompt_tokens: 3 })pb"), false)["prompt_tokens"], 3);
  const nlohmann::json chunk = EventJson(Parse(R"pb(chunk {
                                                      offset: 2
                                                      tokens: 7
                                                      text: "a"
                                                      details { logprob: -1 }
                                                    })pb"),
                                         true);
  EXPECT_EQ(chunk["event"], "chunk");
  EXPECT_EQ(chunk["offset"], 2);
  EXPECT_EQ(chunk["tokens"][0], 7);
  EXPECT_EQ(chunk["logprobs"][0]["logprob"], -1.0);
  EXPECT_EQ(EventJson(Parse(R"pb(finished { text: "z" })pb"), false)["event"], "finished");
  EXPECT_EQ(DumpJson({{"text", "\xff"}}), "{\"text\":\"\xEF\xBF\xBD\"}\n");
}

TEST(EventJsonTest, PromptsAndOutputs) {
  const nlohmann::json prompt = EventJson(Parse(R"pb(prompt {
                                                       tokens: 7
                                                       tokens: 8
                                                       details {}
                                                       details { logprob: -0.5 }
                                                     })pb"),
                                          false);
  EXPECT_EQ(prompt["event"], "prompt");
  EXPECT_TRUE(prompt["logprobs"][0]["logprob"].is_null());
  EXPECT_EQ(prompt["logprobs"][1]["logprob"], -0.5);
  EXPECT_FALSE(prompt.contains("output"));
  EXPECT_EQ(EventJson(Parse(R"pb(finished {}
                                 output: 3)pb"),
                      false)["output"],
            3);
}

}  // namespace
}  // namespace tandem::cli
