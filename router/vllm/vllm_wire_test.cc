#include "router/vllm/vllm_wire.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "router/testing/client_call.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Parse;

TEST(VllmWireTest, AbsentValuesAreThoseOfVllm) {
  const auto request = RequestOf(Parse<engine::GenerateRequest>(R"pb(text: "abc")pb"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->text(), "abc");
  const v1::SamplingParameters& sampling = request->sampling();
  EXPECT_EQ(sampling.temperature(), 1.0f);
  EXPECT_EQ(sampling.top_p(), 1.0f);
  EXPECT_TRUE(sampling.has_top_k());
  EXPECT_EQ(sampling.top_k(), 0u);
  EXPECT_EQ(sampling.repetition_penalty(), 1.0f);
  EXPECT_FALSE(sampling.has_seed());
  EXPECT_FALSE(request->stopping().has_max_tokens());
  EXPECT_FALSE(request->output().has_logprobs());
  EXPECT_FALSE(request->has_constraint());
}

TEST(VllmWireTest, EveryFieldHasItsPlace) {
  const auto request = RequestOf(Parse<engine::GenerateRequest>(R"pb(
    request_id: "one"
    tokenized { original_text: "ab" input_ids: 97 input_ids: 98 }
    sampling_params {
      temperature: 0
      top_p: 0.5
      top_k: 3
      min_p: 0.25
      frequency_penalty: 1
      presence_penalty: -1
      repetition_penalty: 2
      max_tokens: 9
      min_tokens: 2
      stop: "x"
      stop_token_ids: 7
      skip_special_tokens: true
      spaces_between_special_tokens: true
      ignore_eos: true
      n: 2
      logprobs: 0
      prompt_logprobs: 4
      seed: 0
      include_stop_str_in_output: true
      logit_bias { key: 5 value: -1.5 }
      truncate_prompt_tokens: 5
      choice { choices: "a" choices: "b" }
    })pb"));
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::GenerateRequest expected = Parse<v1::GenerateRequest>(R"pb(
    request_id: "one"
    token_ids { ids: 97 ids: 98 }
    sampling {
      temperature: 0
      top_p: 0.5
      top_k: 3
      min_p: 0.25
      frequency_penalty: 1
      presence_penalty: -1
      repetition_penalty: 2
      seed: 0
      logit_bias { key: 5 value: -1.5 }
    }
    stopping { max_tokens: 9 min_tokens: 2 stop: "x" stop_token_ids: 7 ignore_eos: true }
    output { logprobs: 0 prompt_logprobs: 4 }
    constraint { choices { choices: "a" choices: "b" } }
    num_outputs: 2
    truncate_prompt_tokens: 5)pb");
  EXPECT_EQ(request->DebugString(), expected.DebugString());
}

TEST(VllmWireTest, WhatIsNotDoneIsRefusedByName) {
  for (const auto& [name, field] : {
           std::pair{"kv_transfer_params", R"pb(kv_transfer_params: "x")pb"},
           {"kv_transfer_params_json", R"pb(kv_transfer_params_json: "{}")pb"},
           {"mm_inputs", R"pb(mm_inputs: "")pb"},
           {"media_refs", R"pb(media_refs: "")pb"},
           {"extra_mm_inputs", R"pb(extra_mm_inputs: "")pb"},
           {"data_parallel_rank", R"pb(data_parallel_rank: 0)pb"},
           {"sampling_params.structural_tag", R"pb(sampling_params { structural_tag: "{}" })pb"},
           {"sampling_params.seed", R"pb(sampling_params { seed: -2 })pb"},
           {"sampling_params.logprobs", R"pb(sampling_params { logprobs: -1 })pb"},
           {"sampling_params.prompt_logprobs", R"pb(sampling_params { prompt_logprobs: -1 })pb"},
           {"sampling_params.logit_bias", R"pb(sampling_params { logit_bias { key: -1 value: 1 } })pb"},
       }) {
    const auto request = RequestOf(Parse<engine::GenerateRequest>(std::string("text: 'abc' ") + field));
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(request.status().message().substr(0, request.status().message().find(':')), name);
  }
}

TEST(VllmWireTest, WhatNobodyKnowsIsRefusedByNumber) {
  auto asked = Parse<engine::GenerateRequest>(R"pb(text: "abc")pb");
  engine::SamplingParams& params = *asked.mutable_sampling_params();
  params.GetReflection()->MutableUnknownFields(&params)->AddVarint(99, 1);
  EXPECT_THAT(std::string(RequestOf(asked).status().message()), HasSubstr("sampling_params.field 99"));
}

TEST(VllmWireTest, ErrorsHaveVllmsNames) {
  const auto named = [](const char* message) {
    return std::string(WithVllmNames(absl::InvalidArgumentError(message)).message());
  };
  EXPECT_EQ(named("sampling.top_p: 2"), "sampling_params.top_p: 2");
  EXPECT_EQ(named("stopping.stop[0]: 0 bytes"), "sampling_params.stop[0]: 0 bytes");
  EXPECT_EQ(named("output.logprobs: 21"), "sampling_params.logprobs: 21");
  EXPECT_EQ(named("token_ids.ids[1]: 300"), "tokenized.input_ids[1]: 300");
  EXPECT_EQ(named("truncate_prompt_tokens: -2"), "sampling_params.truncate_prompt_tokens: -2");
  EXPECT_EQ(named("token_ids: empty"), "tokenized.input_ids: empty");
  EXPECT_EQ(named("text: empty"), "text: empty");
  EXPECT_EQ(WithVllmNames(absl::NotFoundError("sampling.x")).message(), "sampling.x");
}

v1::GenerateResponse Event(const std::string& text) {
  return Parse<v1::GenerateResponse>(text);
}

constexpr char kStarted[] = R"pb(started { prompt_tokens: 4 })pb";
constexpr char kChunk[] = R"pb(chunk {
                                 tokens: 10
                                 tokens: 11
                                 details {
                                   logprob: -1
                                   top_logprobs { token: 10 logprob: -1 }
                                   top_logprobs { token: 12 logprob: -2 }
                                 }
                                 details {
                                   logprob: -3
                                   top_logprobs { token: 13 logprob: -0.5 }
                                   top_logprobs { token: 11 logprob: -3 }
                                 }
                               })pb";

TEST(VllmAnswerTest, AStreamHasChunksAndAllOfItAtTheEnd) {
  VllmAnswer answer(
      Parse<engine::GenerateRequest>(R"pb(stream: true
                                          sampling_params { logprobs: 1 stop_token_ids: 7 })pb"));
  EXPECT_FALSE(answer.OnEvent(Event(kStarted)).has_value());
  const auto chunk = answer.OnEvent(Event(kChunk));
  ASSERT_TRUE(chunk.has_value());
  EXPECT_EQ(chunk->DebugString(),
            Parse<engine::GenerateResponse>(R"pb(chunk {
                                                   token_ids: 10
                                                   token_ids: 11
                                                   prompt_tokens: 4
                                                   completion_tokens: 2
                                                   output_logprobs {
                                                     token_logprobs: -1
                                                     token_logprobs: -3
                                                     token_ids: 10
                                                     token_ids: 11
                                                     top_logprobs { values: -1 token_ids: 10 }
                                                     top_logprobs { values: -0.5 token_ids: 13 }
                                                   }
                                                 })pb")
                .DebugString());
  EXPECT_TRUE(answer
                  .OnEvent(Event(R"pb(chunk {
                                        tokens: 7
                                        details { logprob: -4 }
                                      })pb"))
                  .has_value());
  const auto end = answer.OnEvent(Event(R"pb(finished {
                                               reason: FINISH_REASON_STOP_TOKEN
                                               usage { completion_tokens: 3 cached_prompt_tokens: 2 }
                                               speculation { draft_tokens: 5 accepted_tokens: 1 }
                                             })pb"));
  ASSERT_TRUE(end.has_value());
  const engine::GenerateComplete& complete = end->complete();
  EXPECT_THAT(complete.output_ids(), ElementsAre(10, 11, 7));
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.matched_token_id(), 7u);
  EXPECT_EQ(complete.prompt_tokens(), 4u);
  EXPECT_EQ(complete.completion_tokens(), 3u);
  EXPECT_EQ(complete.cached_tokens(), 2u);
  EXPECT_EQ(complete.spec_draft_tokens(), 5u);
  EXPECT_EQ(complete.spec_accepted_tokens(), 1u);
  EXPECT_EQ(complete.output_logprobs().token_ids_size(), 3);
}

TEST(VllmAnswerTest, ThePromptIsToldWithTheFirstChunk) {
  VllmAnswer answer(Parse<engine::GenerateRequest>(R"pb(stream: true
                                                        sampling_params { prompt_logprobs: 1 })pb"));
  EXPECT_FALSE(answer.OnEvent(Event(kStarted)).has_value());
  EXPECT_FALSE(answer
                   .OnEvent(Event(R"pb(prompt {
                                         tokens: 1
                                         tokens: 2
                                         details {}
                                         details {
                                           logprob: -2
                                           top_logprobs { token: 9 logprob: -1 }
                                           top_logprobs { token: 2 logprob: -2 }
                                         }
                                       })pb"))
                   .has_value());
  EXPECT_FALSE(answer
                   .OnEvent(Event(R"pb(prompt {
                                         offset: 2
                                         tokens: 3
                                         details { logprob: -0.5 }
                                       })pb"))
                   .has_value());
  const auto chunk = answer.OnEvent(Event(kChunk));
  ASSERT_TRUE(chunk.has_value());
  const engine::InputLogProbs& told = chunk->chunk().input_logprobs();
  EXPECT_THAT(told.token_ids(), ElementsAre(1, 2, 3));
  EXPECT_FALSE(told.token_logprobs(0).has_value());
  EXPECT_EQ(told.token_logprobs(1).value(), -2.0f);
  EXPECT_EQ(told.token_logprobs(2).value(), -0.5f);
  EXPECT_THAT(told.top_logprobs(1).token_ids(), ElementsAre(9));
  EXPECT_FALSE(answer.OnEvent(Event(kChunk))->chunk().has_input_logprobs());
  const auto end = answer.OnEvent(Event(R"pb(finished { reason: FINISH_REASON_MAX_TOKENS })pb"));
  EXPECT_EQ(end->complete().input_logprobs().token_ids_size(), 3);
}

TEST(VllmAnswerTest, OneAnswerForEachOutput) {
  VllmAnswer answer(Parse<engine::GenerateRequest>(R"pb(sampling_params { n: 2 stop: "x" })pb"));
  for (const uint32_t output : {0u, 1u}) {
    v1::GenerateResponse event = Event(kStarted);
    event.set_output(output);
    EXPECT_FALSE(answer.OnEvent(event).has_value());
  }
  v1::GenerateResponse event = Event(kChunk);
  event.set_output(1);
  EXPECT_FALSE(answer.OnEvent(event).has_value());
  event = Event(R"pb(finished { reason: FINISH_REASON_MAX_TOKENS })pb");
  event.set_output(1);
  const auto second = answer.OnEvent(event);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->complete().index(), 1u);
  EXPECT_EQ(second->complete().finish_reason(), "length");
  EXPECT_THAT(second->complete().output_ids(), ElementsAre(10, 11));
  EXPECT_FALSE(second->complete().has_output_logprobs());
  const auto first =
      answer.OnEvent(Event(R"pb(finished { reason: FINISH_REASON_STOP_STRING matched_stop: "x" })pb"));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->complete().matched_stop_str(), "x");
  EXPECT_EQ(first->complete().output_ids_size(), 0);
}

}  // namespace
}  // namespace tandem::router
