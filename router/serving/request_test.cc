#include "router/serving/request.h"

#include <limits>
#include <string>

#include "common/base/token.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "router/testing/letter_encoder.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest ParseRequest(const std::string& text) {
  v1::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

uint64_t Draw42() {
  return 42;
}

absl::StatusOr<v1::VerifierGenerateRequest> Process(const v1::GenerateRequest& request,
                                                    const ServedModel& model) {
  if (absl::Status status = ValidateRequest(request); !status.ok()) return status;
  uint64_t tokenized = 0;
  return PrepareRequest(request, model, Draw42, tokenized);
}

TEST(RequestTest, TextIsEncodedAndOptionsCarriedOver) {
  const auto prepared = Process(ParseRequest(R"pb(
                                  text: "abc"
                                  stopping { max_tokens: 5 stop: "x" stop_token_ids: 9 }
                                  output { logprobs: 2 }
                                  speculation { max_window: 3 window_policy: "fixed" }
                                  sampling { temperature: 0.5 }
                                )pb"),
                                testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->model(), "letters");
  EXPECT_THAT(prepared->prompt().ids(), ElementsAre(1, 'a', 'b', 'c'));
  EXPECT_EQ(prepared->stopping().max_tokens(), 5u);
  EXPECT_EQ(prepared->stopping().stop(0), "x");
  EXPECT_EQ(prepared->output().logprobs(), 2u);
  EXPECT_EQ(prepared->speculation().max_window(), 3u);
  EXPECT_EQ(prepared->sampling().temperature(), 0.5f);
  EXPECT_EQ(prepared->sampling().seed(), 42u);
}

TEST(RequestTest, ChatIsLaidOut) {
  const auto prepared = Process(ParseRequest(R"pb(chat { messages { role: "user" content: "ab" } })pb"),
                                testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->prompt().ids(), ElementsAre(1, 2, 'a', 'b', 3));
}

TEST(RequestTest, AbsentSamplingTakesTheModelsDefaults) {
  ServedModel model = testing::LetterModel();
  model.defaults.temperature = 0.25;
  model.defaults.top_k = 7;
  const auto prepared = Process(ParseRequest(R"pb(text: "a"
                                                  sampling { top_k: 3 seed: 9 })pb"),
                                model);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->sampling().temperature(), 0.25f);
  EXPECT_EQ(prepared->sampling().top_k(), 3u);
  EXPECT_EQ(prepared->sampling().seed(), 9u) << "a seed that was given stays";
  EXPECT_TRUE(prepared->sampling().has_top_p()) << "verifiers need no defaults of their own";
}

// Each of them is effective: it reaches the verifier as it came.
TEST(RequestTest, EveryControlOfSpeculationIsCarriedOver) {
  for (const char* options :
       {"", "mode: SPECULATION_MODE_ON", "mode: SPECULATION_MODE_OFF", "drafter: \"code\"",
        "window_policy: \"goodput\"", "max_window: 4",
        "mode: SPECULATION_MODE_ON drafter: \"code\" window_policy: \"fsm\" max_window: 1"}) {
    v1::GenerateRequest request = ParseRequest(R"pb(text: "a")pb");
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(options, request.mutable_speculation()));
    const auto prepared = Process(request, testing::LetterModel());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(prepared->speculation().ShortDebugString(), request.speculation().ShortDebugString());
  }
}

// What a request cost is told whether it is taken or refused, and no request makes more tokens than fit.
TEST(RequestTest, WhatWasTokenizedIsTold) {
  const ServedModel model = testing::LetterModel();  // 32 tokens of context.
  struct Case {
    std::string text;
    uint64_t tokenized;
    bool taken;
  };
  const std::string most(30, 'a');
  const Case cases[] = {
      {"abc", 4, true}, {most, 31, true}, {most + "a", 32, false}, {std::string(5000, 'a'), 32, false}};
  for (const Case& c : cases) {
    v1::GenerateRequest request;
    request.set_text(c.text);
    uint64_t tokenized = 77;
    const auto prepared = PrepareRequest(request, model, Draw42, tokenized);
    EXPECT_EQ(prepared.ok(), c.taken) << c.text.size() << ": " << prepared.status();
    EXPECT_EQ(tokenized, c.tokenized) << c.text.size();
  }
  // Of a chat that its template refuses nobody knows: a token for every four bytes, as many as fit at most.
  v1::GenerateRequest refused;
  refused.mutable_chat()->add_messages()->set_role("pirate");
  uint64_t tokenized = 0;
  EXPECT_FALSE(PrepareRequest(refused, model, Draw42, tokenized).ok());
  EXPECT_GT(tokenized, 0u);
  EXPECT_LT(tokenized, 32u);
  refused.mutable_chat()->mutable_messages(0)->set_content(std::string(5000, 'a'));
  EXPECT_FALSE(PrepareRequest(refused, model, Draw42, tokenized).ok());
  EXPECT_EQ(tokenized, 32u);
  // Ids need no work.
  v1::GenerateRequest ids;
  for (uint32_t i = 0; i < 40; ++i) ids.mutable_token_ids()->add_ids(i);
  EXPECT_FALSE(PrepareRequest(ids, model, Draw42, tokenized).ok());
  EXPECT_EQ(tokenized, 0u);
}

TEST(RequestTest, APromptIsCutWhereThatIsAskedFor) {
  const ServedModel model = testing::LetterModel();
  const auto ids = [&](const std::string& request) {
    const auto prepared = Process(ParseRequest(request), model);
    EXPECT_TRUE(prepared.ok()) << request << ": " << prepared.status();
    return prepared.ok() ? TokenIds(prepared->prompt().ids().begin(), prepared->prompt().ids().end())
                         : TokenIds();
  };
  // The begin-of-text stays.
  EXPECT_THAT(ids(R"(text: "abcdef" truncate_prompt_tokens: 3)"), ElementsAre(1, 'e', 'f'));
  EXPECT_THAT(ids(R"(text: "abcdef" truncate_prompt_tokens: 1)"), ElementsAre(1));
  EXPECT_THAT(ids(R"(text: "abcdef" truncate_prompt_tokens: 7)"),
              ElementsAre(1, 'a', 'b', 'c', 'd', 'e', 'f'));
  EXPECT_THAT(ids(R"(text: "abcdef" plain: true truncate_prompt_tokens: 2)"), ElementsAre('e', 'f'));
  EXPECT_THAT(ids(R"(token_ids { ids: 5 ids: 6 ids: 7 } truncate_prompt_tokens: 2)"), ElementsAre(6, 7));
  EXPECT_THAT(ids(R"(chat { messages { role: "user" content: "abc" } } truncate_prompt_tokens: 2)"),
              ElementsAre('c', 3));
  // As long as the context has room for.
  const std::string longer = "0123456789012345678901234567890123456789";
  EXPECT_EQ(ids("text: \"" + longer + "\" truncate_prompt_tokens: -1").size(), 31u);
  EXPECT_EQ(ids("text: \"" + longer + "\" truncate_prompt_tokens: -1 stopping { max_tokens: 10 }").size(),
            22u);
  // The whole text was read, and counts.
  v1::GenerateRequest request = ParseRequest("text: \"" + longer + "\" truncate_prompt_tokens: 4");
  uint64_t tokenized = 0;
  EXPECT_TRUE(PrepareRequest(request, model, Draw42, tokenized).ok());
  EXPECT_EQ(tokenized, 41u);
  request.set_truncate_prompt_tokens(40);
  const absl::Status refused = PrepareRequest(request, model, Draw42, tokenized).status();
  EXPECT_THAT(refused.message(), HasSubstr("text: 40 tokens, expected at most 31"));
  EXPECT_EQ(ReasonOf(refused), kContextLengthExceeded);
}

TEST(RequestTest, AScoredPromptMayFillTheContext) {
  const ServedModel model = testing::LetterModel();
  const std::string scored = R"( stopping { max_tokens: 0 } output { prompt_logprobs: 2 })";
  const auto prepared = Process(ParseRequest(R"(text: "0123456789012345678901234567890")" + scored), model);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->prompt().ids_size(), 32);
  EXPECT_FALSE(Process(ParseRequest(R"(text: "01234567890123456789012345678901")" + scored), model).ok());
}

// Each in its tokens, and in those behind a blank where they begin otherwise and are as many.
TEST(RequestTest, BadWordsBecomeSequencesAsInVllm) {
  const auto prepared = Process(ParseRequest(R"(text: "a" sampling { bad_words: "no" bad_words: " x" })"),
                                testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_EQ(prepared->sampling().banned_sequences_size(), 2);
  EXPECT_THAT(prepared->sampling().banned_sequences(0).ids(), ElementsAre('n', 'o'));
  EXPECT_THAT(prepared->sampling().banned_sequences(1).ids(), ElementsAre('x'));
  EXPECT_TRUE(prepared->sampling().bad_words().empty());
}

TEST(RequestTest, TopPOfZeroIsTheLikeliestToken) {
  const auto prepared =
      Process(ParseRequest(R"(text: "a" sampling { top_p: 0 top_k: 9 })"), testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->sampling().top_k(), 1u);
  EXPECT_EQ(prepared->sampling().top_p(), 1.0f);
}

struct BadRequest {
  const char* request;
  const char* error;
};

TEST(RequestTest, BadRequestsNameTheField) {
  const ServedModel model = testing::LetterModel();  // 256 token ids, 32 tokens of context.
  const BadRequest cases[] = {
      {"", "prompt: missing"},
      {R"(text: "")", "text: empty"},
      {R"(token_ids { })", "token_ids: empty"},
      {R"(token_ids { ids: 5 ids: 256 })", "token_ids.ids[1]: 256, expected a token id below 256"},
      {R"(token_ids { ids: 4294967295 })", "token_ids.ids[0]: 4294967295"},
      {R"(chat { })", "chat.messages: empty"},
      {R"(chat { messages { content: "a" } })", "chat.messages[0].role: empty"},
      {R"(chat { messages { role: "pirate" content: "a" } })", "chat: no role pirate"},
      {R"(text: "0123456789012345678901234567890")",
       "text: more than 31 tokens, expected at most 31: the model's maximum context length is 32"},
      {R"(text: "a" request_id: "has blank")", "request_id: expected printable ASCII"},
      {R"(text: "a" request_id: "\303\244")", "request_id: expected printable ASCII"},
      {R"(text: "a" stopping { max_tokens: 0 })", "stopping.max_tokens: 0"},
      {R"(text: "a" stopping { stop: "x" stop: "" })", "stopping.stop[1]: 0 bytes"},
      {R"(text: "a" stopping { stop_token_ids: 1 stop_token_ids: 300 })", "stopping.stop_token_ids[1]: 300"},
      {R"(text: "a" output { logprobs: 21 })", "output.logprobs: 21, expected at most 20"},
      {R"(text: "a" sampling { temperature: -1 })", "sampling.temperature: -1"},
      {R"(text: "a" sampling { temperature: nan })", "sampling.temperature: nan"},
      {R"(text: "a" sampling { top_p: -0.5 })", "sampling.top_p: -0.5"},
      {R"(text: "a" sampling { bad_words: "x" bad_words: "" })", "sampling.bad_words[1]: 0 bytes"},
      {R"(text: "a" sampling { bad_words: " " })", "sampling.bad_words[0]: the word has no tokens"},
      {R"(text: "a" sampling { bad_words: "0123456789012345678901234567890123456789012345678901234567890123456789" })",
       "sampling.bad_words[0]: more than 64 tokens"},
      {R"(text: "a" sampling { banned_sequences { ids: 300 } })", "sampling.banned_sequences[0]: token 300"},
      {R"(text: "a" sampling { banned_sequences { } })", "sampling.banned_sequences[0]: 0 tokens"},
      {R"(text: "a" sampling { allowed_tokens: 65 banned_sequences { ids: 65 } })",
       "sampling.banned_tokens: every"},
      {R"(token_ids { ids: 5 } plain: true)", "plain: only with text"},
      {R"(text: "a" truncate_prompt_tokens: 0)", "truncate_prompt_tokens: 0, expected -1 or at least 1"},
      {R"(text: "a" truncate_prompt_tokens: -2)", "truncate_prompt_tokens: -2"},
      {R"(text: "a" stopping { max_tokens: 0 } output { prompt_logprobs: 0 } num_outputs: 2)",
       "stopping.max_tokens: 0, expected at least 1 with several outputs"},
      {R"(text: "a" stopping { max_tokens: 0 } output { prompt_logprobs: 0 } speculation { mode: SPECULATION_MODE_ON })",
       "speculation.mode: ON, but stopping.max_tokens is 0"},
      {R"(text: "a" sampling { min_p: 2 })", "sampling.min_p: 2"},
      {R"(text: "a" sampling { repetition_penalty: 0 })", "sampling.repetition_penalty: 0"},
      {R"(text: "a" sampling { presence_penalty: 3 })", "sampling.presence_penalty: 3"},
      {R"(text: "a" sampling { frequency_penalty: -3 })", "sampling.frequency_penalty: -3"},
      {R"(text: "a" sampling { logit_bias { key: 256 value: 1 } })", "sampling.logit_bias"},
      {R"(text: "a" sampling { logit_bias { key: 4294967295 value: 1 } })", "sampling.logit_bias"},
      {R"(text: "a" sampling { logit_bias { key: 1 value: inf } })", "sampling.logit_bias[1]"},
      {R"(text: "a" speculation { window_policy: "fxed" })",
       "speculation.window_policy: \"fxed\", expected one of"},
      {R"(text: "a" speculation { mode: 7 })", "speculation.mode: 7, expected 0, 1 or 2"},
      {R"(text: "a" speculation { mode: SPECULATION_MODE_OFF drafter: "code" })",
       "speculation.drafter: set, but speculation.mode is OFF"},
      {R"(text: "a" speculation { mode: SPECULATION_MODE_OFF partner: "code" })",
       "speculation.partner: set, but speculation.mode is OFF"},
      {R"(text: "a" speculation { partner: "code" })",
       "speculation.partner: set, but speculation.drafter is not"},
      {R"(text: "a" speculation { drafter: "code" partner: "code" })",
       "speculation.partner: the drafter itself"},
      {R"(text: "a" speculation { mode: SPECULATION_MODE_OFF window_policy: "fixed" })",
       "speculation.window_policy: set, but speculation.mode is OFF"},
      {R"(text: "a" speculation { mode: SPECULATION_MODE_OFF max_window: 2 })",
       "speculation.max_window: set, but speculation.mode is OFF"},
  };
  for (const BadRequest& c : cases) {
    const absl::Status status = Process(ParseRequest(c.request), model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.request;
    EXPECT_THAT(status.message(), HasSubstr(c.error)) << c.request;
  }
}

TEST(RequestTest, SizeLimits) {
  const auto error_of = [](const v1::GenerateRequest& request) {
    const absl::Status status = ValidateRequest(request);
    return std::string(status.message().data(), status.message().size());
  };
  v1::GenerateRequest request;
  request.set_text(std::string(kMaxPromptBytes, 'a'));
  EXPECT_EQ(error_of(request), "");
  request.set_text(std::string(kMaxPromptBytes + 1, 'a'));
  EXPECT_THAT(error_of(request), HasSubstr("text: 1048577 bytes"));

  request.mutable_chat()->add_messages()->set_role("user");
  request.mutable_chat()->mutable_messages(0)->set_content(std::string(kMaxPromptBytes, 'a'));
  EXPECT_THAT(error_of(request), HasSubstr("chat.messages: 1048586 bytes in all"));
  request.mutable_chat()->clear_messages();
  for (int i = 0; i <= kMaxChatMessages; ++i) request.mutable_chat()->add_messages()->set_role("user");
  EXPECT_THAT(error_of(request), HasSubstr("chat.messages: 4097 messages"));

  request.set_text("a");
  request.set_request_id(std::string(128, 'x'));
  EXPECT_EQ(error_of(request), "");
  request.set_request_id(std::string(129, 'x'));
  EXPECT_THAT(error_of(request), HasSubstr("request_id: 129 bytes"));

  request.clear_request_id();
  for (int i = 0; i < 16; ++i) request.mutable_stopping()->add_stop(std::string(256, 'x'));
  EXPECT_EQ(error_of(request), "");
  request.mutable_stopping()->add_stop("x");
  EXPECT_THAT(error_of(request), HasSubstr("stopping.stop: 17 strings"));
  request.mutable_stopping()->clear_stop();
  request.mutable_stopping()->add_stop(std::string(257, 'x'));
  EXPECT_THAT(error_of(request), HasSubstr("stopping.stop[0]: 257 bytes"));
}

TEST(RequestTest, APredictionBecomesTokensWithoutABeginOfText) {
  auto prepared = Process(ParseRequest(R"pb(text: "a"
                                            priority: -7
                                            prediction { text: "bc" })pb"),
                          testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->prediction().ids(), ElementsAre('b', 'c'));
  EXPECT_EQ(prepared->priority(), -7);
  prepared = Process(ParseRequest(R"pb(text: "a"
                                       prediction { token_ids { ids: 9 ids: 8 } })pb"),
                     testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->prediction().ids(), ElementsAre(9, 8));
  prepared = Process(ParseRequest(R"pb(text: "a"
                                       prediction { text: "" })pb"),
                     testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_FALSE(prepared->has_prediction());
}

TEST(RequestTest, ALimitMayBeTheRoomThatThereIs) {
  // The model's context is 32 tokens, of which the prompt has 3.
  for (const auto& [most, prepared_most] :
       std::vector<std::pair<uint32_t, uint32_t>>{{29, 29}, {30, 0}, {4'000'000'000u, 0}}) {
    v1::GenerateRequest request = ParseRequest(R"pb(token_ids { ids: 5 ids: 6 ids: 7 }
                                                    stopping { fit_max_tokens: true })pb");
    request.mutable_stopping()->set_max_tokens(most);
    const auto prepared = Process(request, testing::LetterModel());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(prepared->stopping().has_max_tokens(), prepared_most > 0) << most;
    EXPECT_EQ(prepared->stopping().max_tokens(), prepared_most);
    EXPECT_FALSE(prepared->stopping().fit_max_tokens());
  }
}

// Whoever has some of the output has been told of the prompt.
TEST(RequestTest, AResumedRequestDoesNotAskForThePromptAgain) {
  const auto prepared = Process(ParseRequest(R"pb(text: "a"
                                                  sampling { seed: 1 }
                                                  output { prompt_logprobs: 2 }
                                                  resume { emitted { ids: 5 } })pb"),
                                testing::LetterModel());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_FALSE(prepared->output().has_prompt_logprobs());
}

TEST(RequestTest, WhatIsWrongWithOutputsAndPredictionsIsNamed) {
  const struct {
    const char* request;
    const char* message;
  } cases[] = {
      {R"pb(num_outputs: 17)pb", "num_outputs: 17, expected at most 16"},
      {R"pb(num_outputs: 2
            resume {})pb",
       "num_outputs: 2, expected 1 with resume"},
      {R"pb(priority: 101)pb", "priority: 101, expected [-100, 100]"},
      {R"pb(priority: -101)pb", "priority: -101, expected [-100, 100]"},
      {R"pb(prediction {})pb", "prediction: empty, expected text or token_ids"},
      {R"pb(prediction { text: "x" }
            speculation { mode: SPECULATION_MODE_OFF })pb",
       "prediction: set, but speculation.mode is OFF"},
      {R"pb(prediction { token_ids { ids: 99999 } })pb", "prediction.token_ids.ids[0]: 99999"},
      {R"pb(stopping { min_tokens: 5 max_tokens: 4 })pb",
       "stopping.min_tokens: 5, expected at most max_tokens, 4"},
      {R"pb(stopping { min_tokens: 5 }
            constraint { regex: "a" })pb",
       "stopping.min_tokens: 5, expected 0 with a constraint"},
      {R"pb(output { prompt_logprobs: 21 })pb", "output.prompt_logprobs: 21, expected at most 20"},
      {R"pb(sampling { allowed_tokens: 3 allowed_tokens: 3 })pb", "sampling.allowed_tokens: token 3 twice"},
      {R"pb(sampling { banned_tokens: 99999 })pb", "sampling.banned_tokens: token 99999"},
  };
  for (const auto& c : cases) {
    v1::GenerateRequest request = ParseRequest(c.request);
    request.set_text("a");
    const absl::Status status = Process(request, testing::LetterModel()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace tandem::router
