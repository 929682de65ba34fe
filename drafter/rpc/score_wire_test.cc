#include "drafter/rpc/score_wire.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ScoreWireTest, DecodesWhatACallerAsks) {
  v1::ScoreRequest proto;
  proto.set_draft_model("code");
  proto.set_vocabulary_fingerprint(7);
  for (uint32_t token : {3u, 2147483647u}) proto.add_tokens(token);
  proto.set_prompt_length(1);
  proto.mutable_sampling()->set_temperature(0.5f);
  proto.mutable_sampling()->set_seed(11);
  proto.set_cache_salt(9);
  const auto request = ScoreRequestFromProto(proto);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->draft_model, "code");
  EXPECT_EQ(request->vocabulary_fingerprint, 7u);
  EXPECT_THAT(request->tokens, ElementsAre(3, INT32_MAX));
  EXPECT_EQ(request->prompt_length, 1u);
  EXPECT_EQ(request->sampling.temperature, 0.5f);
  EXPECT_EQ(request->sampling.seed, 11u);
  EXPECT_EQ(request->cache_salt, 9u);
}

TEST(ScoreWireTest, RefusesWhatDoesNotDecode) {
  v1::ScoreRequest proto;
  proto.add_tokens(1);
  proto.add_tokens(2147483648u);
  EXPECT_THAT(ScoreRequestFromProto(proto).status().ToString(), HasSubstr("INVALID_ARGUMENT: tokens[1]"));
  proto.clear_tokens();
  proto.set_draft_model(std::string(257, 'x'));
  EXPECT_THAT(ScoreRequestFromProto(proto).status().ToString(), HasSubstr("INVALID_ARGUMENT: draft_model"));
  proto.clear_draft_model();
  for (uint32_t i = 0; i < 2000; ++i) (*proto.mutable_sampling()->mutable_logit_bias())[i] = 1.0f;
  EXPECT_EQ(ScoreRequestFromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ScoreWireTest, EncodesTheResult) {
  const v1::ScoreResponse proto = ScoreResultToProto({.ranks = {1, 0, 8},
                                                      .accepted_tokens = 1,
                                                      .prompt_negative_log_likelihood = 2.5,
                                                      .prompt_tokens = 4,
                                                      .remembers_outputs = true});
  EXPECT_EQ(proto.ranks(), std::string("\x01\x00\x08", 3));
  EXPECT_EQ(proto.accepted_tokens(), 1u);
  EXPECT_EQ(proto.prompt_negative_log_likelihood(), 2.5);
  EXPECT_EQ(proto.prompt_tokens(), 4u);
  EXPECT_TRUE(proto.remembers_outputs());
}

}  // namespace
}  // namespace tandem
