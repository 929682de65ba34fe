#include "common/rpc/sampling_wire.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

TEST(SamplingWireTest, AbsentFieldsTakeTheModelsDefaultsThenOurs) {
  v1::SamplingParameters proto;
  proto.set_top_k(0);
  const GenerationDefaults defaults = {
      .temperature = 0.6, .top_p = 0.9, .min_p = 0.05, .top_k = 20, .repetition_penalty = 1.1};
  const auto sampling = SamplingFromProto(proto, defaults, 100);
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_EQ(sampling->temperature, 0.6f);
  EXPECT_EQ(sampling->top_p, 0.9f);
  EXPECT_EQ(sampling->top_k, 0u);  // Given, though it is the proto's zero.
  EXPECT_EQ(sampling->repetition_penalty, 1.1f);
  EXPECT_EQ(sampling->min_p, 0.05f);
  const auto plain = SamplingFromProto({}, {}, 100);
  EXPECT_EQ(plain->temperature, 1.0f);
  EXPECT_EQ(plain->top_p, 1.0f);
  EXPECT_EQ(plain->repetition_penalty, 1.0f);
}

TEST(SamplingWireTest, EveryFieldRoundTrips) {
  const SamplingParameters sampling = {.temperature = 0.0f,
                                       .top_k = 5,
                                       .top_p = 0.5f,
                                       .min_p = 0.1f,
                                       .repetition_penalty = 1.5f,
                                       .presence_penalty = -1.0f,
                                       .frequency_penalty = 2.0f,
                                       .logit_bias = {{1, -100.0f}, {2, 3.0f}},
                                       .seed = ~uint64_t{0},
                                       .banned_sequences = {{7}, {8, 9}}};
  const GenerationDefaults defaults = {
      .temperature = 0.6, .top_p = 0.9, .top_k = 20, .repetition_penalty = 1.1};
  const auto back = SamplingFromProto(SamplingToProto(sampling), defaults, 100);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->temperature, 0.0f);
  EXPECT_EQ(back->top_k, 5u);
  EXPECT_EQ(back->top_p, 0.5f);
  EXPECT_EQ(back->min_p, 0.1f);
  EXPECT_EQ(back->repetition_penalty, 1.5f);
  EXPECT_EQ(back->presence_penalty, -1.0f);
  EXPECT_EQ(back->frequency_penalty, 2.0f);
  EXPECT_THAT(back->logit_bias, ElementsAre(std::pair(1, -100.0f), std::pair(2, 3.0f)));
  EXPECT_EQ(back->seed, ~uint64_t{0});
  EXPECT_THAT(back->banned_sequences, ElementsAre(ElementsAre(7), ElementsAre(8, 9)));
}

// For every implementation it is the likeliest token alone.
TEST(SamplingWireTest, TopPOfZeroIsTopKOfOne) {
  v1::SamplingParameters proto;
  proto.set_top_p(0.0f);
  const auto sampling = SamplingFromProto(proto, {.top_k = 20}, 100);
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_EQ(sampling->top_k, 1u);
  EXPECT_EQ(sampling->top_p, 1.0f);
}

TEST(SamplingWireTest, OutOfRangeValuesAreRefused) {
  v1::SamplingParameters proto;
  proto.set_top_p(1.5f);
  EXPECT_EQ(SamplingFromProto(proto, {}, 100).status().code(), absl::StatusCode::kInvalidArgument);
  proto.clear_top_p();
  proto.add_bad_words("x");
  EXPECT_EQ(SamplingFromProto(proto, {}, 100).status().code(), absl::StatusCode::kInvalidArgument);
  proto.clear_bad_words();
  proto.add_banned_sequences();
  EXPECT_EQ(SamplingFromProto(proto, {}, 100).status().code(), absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < 65; ++i) proto.mutable_banned_sequences(0)->add_ids(1);
  EXPECT_EQ(SamplingFromProto(proto, {}, 100).status().code(), absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < 1024; ++i) proto.add_banned_sequences()->add_ids(1);
  proto.mutable_banned_sequences(0)->mutable_ids()->Truncate(64);
  EXPECT_EQ(SamplingFromProto(proto, {}, 100).status().code(), absl::StatusCode::kInvalidArgument);
  proto.clear_banned_sequences();
  (*proto.mutable_logit_bias())[100] = 1.0f;
  EXPECT_EQ(SamplingFromProto(proto, {}, 100).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(SamplingFromProto(proto, {}, 101).ok());
}

TEST(SamplingWireTest, AllowedAndBannedTokensComeBackInOrder) {
  v1::SamplingParameters proto;
  for (const uint32_t token : {9u, 2u, 5u}) proto.add_allowed_tokens(token);
  for (const uint32_t token : {7u, 2u}) proto.add_banned_tokens(token);
  const auto sampling = SamplingFromProto(proto, {}, 10);
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_THAT(sampling->allowed_tokens, ElementsAre(2, 5, 9));
  const auto back = SamplingFromProto(SamplingToProto(*sampling), {}, 10);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(back->allowed_tokens, ElementsAre(2, 5, 9));
  EXPECT_THAT(back->banned_tokens, ElementsAre(2, 7));
  proto.add_banned_tokens(uint32_t{1} << 31);
  EXPECT_EQ(DecodeSampling(proto, {}).status().code(), absl::StatusCode::kInvalidArgument);
  proto.mutable_banned_tokens()->Clear();
  for (uint32_t token = 0; token < 4097; ++token) proto.add_banned_tokens(token);
  EXPECT_EQ(DecodeSampling(proto, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
