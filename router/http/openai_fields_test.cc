// Fields that clients of OpenAI and vLLM send: what each does, which have no effect, and how errors name
// them.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/http/testing/openai_api_fixture.h"
#include "router/testing/letter_encoder.h"

namespace tandem::router {
namespace {

using testing::Answer;
using testing::ChunkEvent;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::LettersConfig;
using ::testing::Not;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// Keeps what the template gets.
class ListeningEncoder final : public PromptEncoder {
 public:
  explicit ListeningEncoder(std::shared_ptr<const PromptEncoder> letters) : letters_(std::move(letters)) {}
  absl::StatusOr<TokenIds> EncodeText(absl::string_view text, size_t max_tokens, bool plain) const override {
    return letters_->EncodeText(text, max_tokens, plain);
  }
  absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt& chat, size_t max_tokens) const override {
    absl::MutexLock lock(&mutex_);
    heard_ = chat;
    return letters_->EncodeChat(chat, max_tokens);
  }
  absl::string_view TokenBytes(TokenId token) const override { return letters_->TokenBytes(token); }
  bool IsSpecial(TokenId token) const override { return letters_->IsSpecial(token); }
  std::string DeliveredText(absl::Span<const TokenId> tokens, absl::Span<const std::string> stop,
                            bool special) const override {
    return letters_->DeliveredText(tokens, stop, special);
  }
  std::string Decode(absl::Span<const TokenId> tokens, bool skip_special) const override {
    return letters_->Decode(tokens, skip_special);
  }
  Json Variables() const {
    absl::MutexLock lock(&mutex_);
    return Json::parse(heard_.template_variables(), nullptr, false);
  }

 private:
  const std::shared_ptr<const PromptEncoder> letters_;
  mutable absl::Mutex mutex_;
  mutable v1::ChatPrompt heard_;
};

class OpenAiFieldsTest : public testing::OpenAiApiTest {
 protected:
  void Listen(const std::string& text = "x") {
    verifier_.SetScript([this, text](StubVerifier::Call& call) {
      asked_ = call.request();
      Saying(text, 1)(call);
    });
  }
  void StartWith(v1::RouterConfig config) {
    encoder_ = std::make_shared<ListeningEncoder>(testing::LetterModel().encoder);
    router_ = std::make_unique<TestRouter>(config, encoder_);
    api_ = std::make_unique<OpenAiApi>(OpenAiApi::Options{}, &router_->router(), nullptr);
    server_ = HttpServer::Start({.address = "127.0.0.1:0"}, api_.get()).value();
  }
  // Sends the prompt back with log probabilities, token i with -i, and then `text`, if it may.
  void Score(const std::string& text) {
    verifier_.SetScript([this, text](StubVerifier::Call& call) {
      const v1::VerifierGenerateRequest& request = call.request();
      {
        absl::MutexLock lock(&mutex_);
        asked_ = request;
      }
      call.Send(StartedEvent(request));
      if (request.output().has_prompt_logprobs()) {
        v1::GenerateResponse event;
        for (int i = 0; i < request.prompt().ids_size(); ++i) {
          event.mutable_prompt()->add_tokens(request.prompt().ids(i));
          event.mutable_prompt()->add_details()->set_logprob(-static_cast<float>(i));
        }
        call.Send(event);
      }
      uint32_t told = 0;
      if (request.stopping().max_tokens() > 0) {
        v1::GenerateResponse chunk = ChunkEvent(0, text);
        for (v1::TokenDetail& detail : *chunk.mutable_chunk()->mutable_details()) detail.set_logprob(-0.5f);
        told = static_cast<uint32_t>(chunk.chunk().tokens_size());
        call.Send(chunk);
      }
      v1::GenerateResponse finished = FinishedEvent(request, told);
      if (told == 0) finished.mutable_finished()->set_reason(v1::FINISH_REASON_MAX_TOKENS);
      call.Send(finished);
      call.Finish(absl::OkStatus());
    });
  }
  std::string ParamOf(const Answer& answer) {
    const Json error = answer.json()["error"];
    return error["param"].is_string() ? error["param"].get<std::string>() : "-";
  }
  std::string CodeOf(const Answer& answer) {
    const Json error = answer.json()["error"];
    return error["code"].is_string() ? error["code"].get<std::string>() : "-";
  }

  std::shared_ptr<ListeningEncoder> encoder_;
  absl::Mutex mutex_;
};

TEST_F(OpenAiFieldsTest, SamplingFieldsAreTakenInAllSpellings) {
  Listen();
  ASSERT_EQ(Chat(R"(, "top_p": 0, "top_k": 16.0, "max_tokens": 8.0, "seed": 18446744073709551615,
                   "stop_token_ids": [65.0], "bad_words": ["no", " x"], "include_stop_str_in_output": true,
                   "stop": ["END"], "best_of": 1, "frequency_penalty": null, "n": null, "logit_bias": null,
                   "tools": null, "tool_choice": null, "response_format": null, "stream_options": null,
                   "logprobs": null, "top_logprobs": null, "parallel_tool_calls": null, "metadata": null)")
                .status,
            200);
  EXPECT_EQ(asked_.sampling().top_k(), 1u) << "top_p 0 is the likeliest token";
  EXPECT_EQ(asked_.sampling().top_p(), 1.0f);
  EXPECT_EQ(asked_.sampling().seed(), ~uint64_t{0});
  EXPECT_EQ(asked_.stopping().max_tokens(), 8u);
  EXPECT_THAT(asked_.stopping().stop_token_ids(), ElementsAre(65));
  EXPECT_TRUE(asked_.stopping().include_stop());
  ASSERT_EQ(asked_.sampling().banned_sequences_size(), 2);
  EXPECT_THAT(asked_.sampling().banned_sequences(0).ids(), ElementsAre('n', 'o'));
  EXPECT_THAT(asked_.sampling().banned_sequences(1).ids(), ElementsAre('x'));
  for (const char* seed : {"-1", "-1.0", "9223372036854775808", "0"})
    EXPECT_EQ(Chat(absl::StrCat(R"(, "seed": )", seed)).status, 200) << seed;
  for (const char* seed : {"18446744073709551616", "1.5", "\"1\""})
    EXPECT_EQ(Chat(absl::StrCat(R"(, "seed": )", seed)).status, 400) << seed;
  EXPECT_EQ(Complete(R"("prompt": [97.0, 98], "n": 2, "best_of": 2)").status, 200);
  const Answer best = Complete(R"("prompt": "a", "n": 2, "best_of": 3)");
  EXPECT_EQ(ParamOf(best), "best_of");
  EXPECT_EQ(CodeOf(best), "unsupported_parameter");
}

TEST_F(OpenAiFieldsTest, PromptsAreReadAsTheRequestSays) {
  Listen();
  ASSERT_EQ(Complete(R"("prompt": "abcdef", "truncate_prompt_tokens": 3)").status, 200);
  EXPECT_THAT(asked_.prompt().ids(), ElementsAre(1, 'e', 'f'));
  ASSERT_EQ(Complete(R"("prompt": "ab", "add_special_tokens": false)").status, 200);
  EXPECT_THAT(asked_.prompt().ids(), ElementsAre('a', 'b'));
  ASSERT_EQ(Complete(R"("prompt": [97], "add_special_tokens": false)").status, 200);
  EXPECT_THAT(asked_.prompt().ids(), ElementsAre('a'));
  // A cut prompt is echoed as far as it was read.
  EXPECT_EQ(Complete(R"("prompt": "abcdef", "truncate_prompt_tokens": 3, "echo": true)")
                .json()["choices"][0]["text"],
            "efx");
  // Salts part the cache of one tenant.
  const auto salt = [this](const std::string& more) {
    EXPECT_EQ(Complete(R"("prompt": "a")" + more).status, 200);
    return asked_.cache_salt();
  };
  const uint64_t plain = salt("");
  const uint64_t one = salt(R"(, "cache_salt": "one")");
  EXPECT_NE(one, plain);
  EXPECT_EQ(salt(R"(, "cache_salt": "one")"), one);
  EXPECT_NE(salt(R"(, "cache_salt": "two")"), one);
}

TEST_F(OpenAiFieldsTest, TemplatesGetWhatStandsBesideTheirVariables) {
  Listen();
  StartWith(LettersConfig({verifier_.endpoint()}));
  ASSERT_EQ(Chat(R"(, "reasoning_effort": "low", "enable_thinking": false, "verbosity": "low")").status, 200);
  EXPECT_EQ(encoder_->Variables(), Json::parse(R"({"reasoning_effort": "low", "enable_thinking": false})"));
  // What stands among the variables goes first.
  ASSERT_EQ(
      Chat(R"(, "reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"})").status,
      200);
  EXPECT_EQ(encoder_->Variables(), Json::parse(R"({"reasoning_effort": "high"})"));
  ASSERT_EQ(
      Ask("POST", "/v1/responses", R"({"input": "x", "reasoning": {"effort": "minimal", "summary": "auto"}})")
          .status,
      200);
  EXPECT_EQ(encoder_->Variables(), Json::parse(R"({"reasoning_effort": "minimal"})"));
}

TEST_F(OpenAiFieldsTest, UnknownFieldsAreIgnoredByName) {
  Listen();
  Answer answer = Ask("POST", "/v1/chat/completions",
                      R"({"messages": [{"role": "user", "cache_control": {"type": "x"},
                                        "content": [{"type": "text", "text": "a", "cache_control": {}}]},
                                       {"role": "assistant", "content": null, "thinking": "",
                                        "tool_calls": [{"id": "i", "index": 0, "type": "function", "more": 1,
                                                        "function": {"name": "f", "arguments": "{}", "x": 1}}]},
                                       {"role": "user", "content": "b"}],
                          "tools": [{"type": "function", "cache_control": 1,
                                     "function": {"name": "f", "extra": 1}}],
                          "mystery": 1, "with, comma": 2, "user": "somebody", "client_metadata": {}})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("X-Tandem-Ignored: "));
  for (const char* field :
       {"messages[0].cache_control", "messages[0].content[0].cache_control", "messages[1].thinking",
        "messages[1].tool_calls[0].more", "messages[1].tool_calls[0].function.x", "tools[0].cache_control",
        "tools[0].function.extra", "mystery", "with??comma"}) {
    EXPECT_THAT(answer.head, HasSubstr(field));
  }
  EXPECT_THAT(answer.head, Not(HasSubstr("client_metadata"))) << "that is known to have none";
  // Streams say it as well, and what is read apart.
  answer = Chat(R"(, "stream": true, "mystery": 1, "stream_options": {"more": 1})");
  EXPECT_THAT(answer.head, HasSubstr("X-Tandem-Ignored: stream_options.more, mystery\r\n"));
  EXPECT_THAT(Ask("POST", "/tokenize", R"({"prompt": "a", "mystery": 1})").head,
              HasSubstr("X-Tandem-Ignored: mystery"));
  EXPECT_THAT(Ask("POST", "/detokenize", R"({"tokens": [97], "mystery": 1})").head,
              HasSubstr("X-Tandem-Ignored: mystery"));
  EXPECT_THAT(Chat(R"(, "verbosity": "low")").head, HasSubstr("X-Tandem-Ignored: verbosity"));
  for (const char* nothing :
       {"", R"(, "suffix": null, "mystery": null, "response_format": {"type": "text", "json_schema": null})",
        R"(, "logits_processors": [], "kv_transfer_params": {}, "vllm_xargs": {}, "functions": [])"}) {
    const Answer answer = Chat(nothing);
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_THAT(answer.head, Not(HasSubstr("X-Tandem-Ignored"))) << nothing;
  }
  // However many there are, the head stays small.
  std::string many;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&many, ", \"", std::string(100, 'f'), i, "\": 1");
  answer = Chat(many);
  EXPECT_EQ(answer.status, 200);
  EXPECT_LT(answer.head.size(), 2048u);
  EXPECT_THAT(answer.head, HasSubstr(", ..."));
  // Our own object has no fields that other servers have.
  EXPECT_EQ(ParamOf(Chat(R"(, "tandem": {"depth": 1})")), "tandem.depth");
}

TEST_F(OpenAiFieldsTest, ATenantMayHaveUnknownFieldsRefused) {
  Listen();
  v1::RouterConfig config = LettersConfig({verifier_.endpoint()});
  config.mutable_tenants(1)->set_unknown_fields(v1::UNKNOWN_FIELDS_REFUSE);
  StartWith(config);
  const std::pair<std::string, std::string> kRefused[] = {
      {R"("nonsense": 1)", "nonsense"},
      {R"("stream": true, "stream_options": {"more": true})", "stream_options.more"},
      {R"("structured_outputs": {"xml": true})", "structured_outputs.xml"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "extra": 1}}])",
       "tools[0].function.extra"},
  };
  for (const auto& [fields, name] : kRefused) {
    const Answer answer = Chat(", " + fields);
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_EQ(ParamOf(answer), name) << answer.body;
  }
  EXPECT_EQ(CodeOf(Chat(R"(, "nonsense": 1)")), "unknown_parameter");
  EXPECT_EQ(Chat(R"(, "verbosity": "low")").status, 200) << "a known one";
  EXPECT_EQ(Ask("POST", "/v1/chat/completions",
                R"({"messages": [{"role": "user", "content": "a"}], "nonsense": 1})",
                "Authorization: Bearer secret-a\r\n")
                .status,
            200)
      << "another tenant's";
}

TEST_F(OpenAiFieldsTest, ErrorsNameTheFieldsOfTheApi) {
  const auto chat = [this](const std::string& more) { return Chat(", " + more); };
  EXPECT_EQ(ParamOf(chat(R"("max_completion_tokens": 0)")), "max_completion_tokens");
  EXPECT_EQ(ParamOf(chat(R"("max_tokens": 0)")), "max_tokens");
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/responses", R"({"input": "x", "max_output_tokens": 0})")),
            "max_output_tokens");
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/chat/completions", R"({"messages": []})")), "messages");
  EXPECT_EQ(
      ParamOf(Ask("POST", "/v1/chat/completions", R"({"messages": [{"role": "pirate", "content": "x"}]})")),
      "messages");
  EXPECT_EQ(ParamOf(chat(R"("chat_template_kwargs": 3)")), "chat_template_kwargs");
  EXPECT_EQ(ParamOf(chat(R"("stop": ["a", ""])")), "stop[1]");
  EXPECT_EQ(ParamOf(chat(R"("stop": ["a", 5])")), "stop[1]");
  EXPECT_EQ(ParamOf(chat(R"("stop": 5)")), "stop");
  EXPECT_EQ(ParamOf(chat(R"("bad_words": [5])")), "bad_words[0]");
  EXPECT_EQ(ParamOf(chat(R"("stop_token_ids": [3, "x"])")), "stop_token_ids[1]");
  EXPECT_EQ(ParamOf(chat(R"("guided_choice": ["a", 5])")), "guided_choice[1]");
  EXPECT_EQ(ParamOf(chat(R"("tandem": {"drafter": "nobody"})")), "tandem.drafter");
  EXPECT_EQ(ParamOf(chat(R"("tandem": {"adapter": "no one"})")), "tandem.adapter");
  EXPECT_EQ(ParamOf(chat(R"("stop_token_ids": [3, 900])")), "stop_token_ids[1]");
  EXPECT_EQ(ParamOf(Complete(R"("prompt": [97, 900])")), "prompt[1]");
  EXPECT_EQ(ParamOf(Complete(R"("prompt": ["a", [97, 900]])")), "prompt[1][1]");
  EXPECT_EQ(ParamOf(Complete(R"("prompt": ["a", true])")), "prompt[1]");
  EXPECT_EQ(ParamOf(chat(R"("tools": [{"type": "function", "function": {"name": "f"}},
                             {"type": "function", "function": {"name": "a b"}}])")),
            "tools[1].function.name");
  const Answer type = chat(R"("tools": [{"type": "function", "function": {"name": "f",
                              "parameters": {"type": "string"}, "strict": true}}])");
  EXPECT_EQ(ParamOf(type), "tools[0].function.parameters.type") << type.body;
  EXPECT_EQ(CodeOf(type), "invalid_function_parameters");
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/responses",
                        R"({"input": "x", "tools": [{"type": "function", "name": "f", "strict": true,
                            "parameters": {"type": "string"}}]})")),
            "tools[0].parameters.type");
  // Codes.
  EXPECT_EQ(CodeOf(chat(R"("temperature": "hot")")), "invalid_type");
  EXPECT_EQ(CodeOf(chat(R"("temperature": 1000)")), "invalid_value");
  EXPECT_EQ(CodeOf(chat(R"("top_k": 1.5)")), "invalid_value");
  EXPECT_EQ(CodeOf(Ask("POST", "/v1/chat/completions", "{}")), "missing_required_parameter");
  EXPECT_EQ(CodeOf(chat(R"("functions": [{}])")), "unsupported_parameter");
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/chat/completions", "{")), "-");
}

// What a verifier says of a constraint is about the field that it came from.
TEST_F(OpenAiFieldsTest, VerifiersErrorsAreToldInTheFieldsOfTheApi) {
  const auto refuse = [this](const std::string& message) {
    verifier_.SetScript(
        [message](StubVerifier::Call& call) { call.Finish(absl::InvalidArgumentError(message)); });
  };
  refuse("constraint.structural_tags: tags[2].content: #/properties/when/pattern: not supported");
  const std::string f = R"({"type": "function", "function": {"name": ")";
  const std::string g = R"(", "strict": true, "parameters": {"type": "object"}}})";
  Answer answer = Chat(absl::StrCat(R"(, "tools": [)", f, "a", g, ", ", f, "b", g, ", ", f, "c", g, "]"));
  EXPECT_EQ(ParamOf(answer), "tools[2].function.parameters.properties.when.pattern") << answer.body;
  EXPECT_EQ(CodeOf(answer), "invalid_function_parameters");
  EXPECT_EQ(answer.error(), "tools[2].function.parameters.properties.when.pattern: not supported");
  refuse("constraint.json_schema.schema: #/properties/when/pattern: not supported");
  answer =
      Chat(R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}})");
  EXPECT_EQ(ParamOf(answer), "response_format.json_schema.schema.properties.when.pattern") << answer.body;
  EXPECT_EQ(CodeOf(answer), "invalid_json_schema");
  answer = Ask("POST", "/v1/responses",
               R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}})");
  EXPECT_EQ(ParamOf(answer), "text.format.schema.properties.when.pattern") << answer.body;
  answer = Chat(R"(, "structured_outputs": {"json": {}})");
  EXPECT_EQ(ParamOf(answer), "structured_outputs.json.properties.when.pattern") << answer.body;
  refuse("constraint.choices[1]: empty");
  EXPECT_EQ(ParamOf(Chat(R"(, "structured_outputs": {"choice": ["a", ""]})")),
            "structured_outputs.choice[1]");
  refuse("constraint.regex: unbalanced");
  EXPECT_EQ(ParamOf(Chat(R"(, "guided_regex": "a(")")), "guided_regex");
  refuse("constraint.structural_tags: tags[1].content: #/not: no");
  EXPECT_EQ(ParamOf(Chat(R"(, "response_format": {"type": "structural_tag", "triggers": ["<f"],
                              "structures": [{"begin": "<f=a>", "schema": {}, "end": "</f>"},
                                             {"begin": "<f=b>", "schema": {}, "end": "</f>"}]})")),
            "response_format.structures[1].schema.not");
}

// In the middle of an output too, where the verifier cannot follow a constraint any further.
TEST_F(OpenAiFieldsTest, EveryErrorOfARequestHasACode) {
  absl::Status status = absl::FailedPreconditionError("constraint: the output has more readings than ...");
  verifier_.SetScript([&status](StubVerifier::Call& call) { call.Finish(status); });
  const Answer answer = Chat(R"(, "guided_regex": "((a{1,50}){1,50}){1,50}")");
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_EQ(ParamOf(answer), "guided_regex");
  EXPECT_EQ(CodeOf(answer), "unsupported_value");
  status = absl::OutOfRangeError("of no field");
  EXPECT_EQ(CodeOf(Chat("")), "invalid_value");
  EXPECT_EQ(CodeOf(Ask("POST", "/v1/chat/completions", "{")), "invalid_value");
}

TEST_F(OpenAiFieldsTest, AFieldThatOccursTwiceIsNamed) {
  const Answer twice = Chat(R"(, "max_tokens": 3, "max_tokens": 4)");
  EXPECT_EQ(twice.status, 400);
  EXPECT_EQ(ParamOf(twice), "max_tokens");
  EXPECT_EQ(CodeOf(twice), "invalid_value");
  EXPECT_THAT(twice.error(), HasSubstr("occurs twice in one object"));
  EXPECT_EQ(ParamOf(Chat(R"(, "stream_options": {"include_usage": true, "include_usage": false})")),
            "stream_options.include_usage");
}

TEST_F(OpenAiFieldsTest, WhatDoesNotFitTheContextHasItsCode) {
  const std::string long_text(40, 'a');  // Of 32.
  const auto expect = [this](const Answer& answer, const std::string& param) {
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(CodeOf(answer), "context_length_exceeded") << answer.body;
    EXPECT_EQ(ParamOf(answer), param);
    EXPECT_THAT(answer.error(), HasSubstr("maximum context length is 32 tokens"));
  };
  expect(Ask("POST", "/v1/chat/completions",
             absl::StrCat(R"({"messages": [{"role": "user", "content": ")", long_text, "\"}]}")),
         "messages");
  expect(Complete(absl::StrCat(R"("prompt": ")", long_text, "\"")), "prompt");
  expect(Complete(absl::StrCat(R"("prompt": ["a", ")", long_text, "\"]")), "prompt[1]");
  expect(Ask("POST", "/v1/responses", absl::StrCat(R"({"input": ")", long_text, "\"}")), "input");
  // A verifier's own, with its reason.
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Finish(WithReason(absl::OutOfRangeError("stopping.max_tokens: 30, expected at most 3"),
                           kContextLengthExceeded));
  });
  const Answer answer = Chat(R"(, "max_completion_tokens": 30)");
  EXPECT_EQ(CodeOf(answer), "context_length_exceeded") << answer.body;
  EXPECT_EQ(ParamOf(answer), "max_completion_tokens");
}

TEST_F(OpenAiFieldsTest, StructuralTagsInAllTheirForms) {
  Listen();
  const std::string older = R"({"triggers": ["<f"], "structures":
      [{"begin": "<f>", "schema": {"type": "object", "b": 1, "a": 2}, "end": "</f>"}]})";
  const std::string newer =
      R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"],
      "tags": [{"type": "tag", "begin": "<f>", "end": "</f>",
                "content": {"type": "json_schema", "json_schema": {"type": "object", "b": 1, "a": 2}}}]}})";
  for (const std::string& format : {older, newer}) {
    const std::string typed =
        format == newer ? format : absl::StrCat(R"({"type": "structural_tag", )", format.substr(1));
    for (const std::string& field :
         {absl::StrCat(R"("response_format": )", typed), absl::StrCat(R"("structural_tag": )", format),
          absl::StrCat(R"("structural_tag": )", Json(format).dump()),
          absl::StrCat(R"("structured_outputs": {"structural_tag": )", Json(format).dump(), "}")}) {
      const Answer answer = Chat(", " + field);
      ASSERT_EQ(answer.status, 200) << field << answer.body;
      const v1::StructuralTags& tags = asked_.constraint().structural_tags();
      EXPECT_THAT(tags.triggers(), ElementsAre("<f")) << field;
      ASSERT_EQ(tags.tags_size(), 1) << field;
      EXPECT_EQ(tags.tags(0).begin(), "<f>");
      EXPECT_EQ(tags.tags(0).end(), "</f>");
      EXPECT_EQ(tags.tags(0).content().json_schema().schema(), R"({"type":"object","b":1,"a":2})") << field;
    }
  }
  const Answer other = Chat(R"(, "structural_tag": {"format": {"type": "sequence", "elements": []}})");
  EXPECT_EQ(ParamOf(other), "structural_tag.format.type") << other.body;
  EXPECT_EQ(ParamOf(Chat(R"(, "structural_tag": {"triggers": ["a"]})")), "structural_tag.structures");
}

TEST_F(OpenAiFieldsTest, OffsetsAreCharactersOfTheReturnedText) {
  Score("\xc3\xa9!");  // Three tokens of two characters.
  const Json choice = Complete(R"("prompt": "a\u00e9b", "echo": true, "logprobs": 0)").json()["choices"][0];
  EXPECT_EQ(choice["text"],
            "a\xc3\xa9"
            "b\xc3\xa9!");
  const Json& logprobs = choice["logprobs"];
  // Begin-of-text, "a", two bytes, "b", two bytes, "!".
  EXPECT_EQ(logprobs["text_offset"], Json({0, 0, 1, 1, 2, 3, 3, 4})) << logprobs;
  EXPECT_EQ(logprobs["tokens"],
            Json({"\x01", "a", "bytes:\\xc3", "bytes:\\xa9", "b", "bytes:\\xc3", "bytes:\\xa9", "!"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({nullptr, -1.0, -2.0, -3.0, -4.0, -0.5, -0.5, -0.5}));
  // `logprobs: 0` has the chosen token.
  EXPECT_EQ(logprobs["top_logprobs"][7], Json({{"!", -0.5}}));
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  // A stream has the same.
  const Answer stream = Complete(R"("prompt": "a\u00e9b", "echo": true, "logprobs": 0, "stream": true)");
  Json offsets = Json::array();
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const Json told = Json::parse(event)["choices"][0]["logprobs"];
    if (told.is_null()) continue;
    for (const Json& offset : told["text_offset"]) offsets.push_back(offset);
  }
  EXPECT_EQ(offsets, logprobs["text_offset"]);
  // Ids as they are, without a begin-of-text.
  EXPECT_EQ(Complete(R"("prompt": [97, 98], "echo": true, "logprobs": 0)")
                .json()["choices"][0]["logprobs"]["text_offset"],
            Json({0, 1, 2, 2, 3}));
  EXPECT_EQ(Complete(R"("prompt": "x", "logprobs": 1, "return_tokens_as_token_ids": true)")
                .json()["choices"][0]["logprobs"]["tokens"],
            Json({"token_id:195", "token_id:169", "token_id:33"}));
  const Json chat = Chat(R"(, "logprobs": true, "max_tokens": 3, "return_tokens_as_token_ids": true)").json();
  const Json& content = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u) << chat;
  EXPECT_EQ(content[2]["token"], "token_id:33");
}

TEST_F(OpenAiFieldsTest, APromptIsScored) {
  Score("never");
  const Answer answer = Complete(R"("prompt": ["ab", "c"], "echo": true, "max_tokens": 0, "logprobs": 1)");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(asked_.stopping().max_tokens(), 0u);
  EXPECT_EQ(asked_.output().prompt_logprobs(), 1u);
  const Json json = answer.json();
  EXPECT_EQ(json["choices"][0]["text"], "ab");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["choices"][0]["logprobs"]["token_logprobs"], Json({nullptr, -1.0, -2.0}));
  EXPECT_EQ(json["choices"][1]["text"], "c");
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(Complete(R"("prompt": "ab", "max_tokens": 0)").json()["choices"][0]["text"], "");
  EXPECT_EQ(Complete(R"("prompt": "ab", "max_tokens": 0, "echo": true)").json()["choices"][0]["text"], "ab");
  EXPECT_EQ(ParamOf(Complete(R"("prompt": "ab", "max_tokens": 0, "n": 2)")), "max_tokens");
}

TEST_F(OpenAiFieldsTest, AnswersHaveTheTokensOfTheirPrompts) {
  verifier_.SetScript(Saying("ab", 1));
  const Json chat = Chat(R"(, "return_token_ids": true)").json();
  EXPECT_EQ(chat["prompt_token_ids"], Json({1, 2, 'h', 'i', 3}));
  EXPECT_EQ(chat["choices"][0]["token_ids"], Json({'a', 'b'}));
  const Json text = Complete(R"("prompt": ["x", "yz"], "n": 2, "return_token_ids": true)").json();
  EXPECT_EQ(text["choices"][1]["prompt_token_ids"], Json({1, 'x'}));
  EXPECT_EQ(text["choices"][2]["prompt_token_ids"], Json({1, 'y', 'z'}));
  EXPECT_FALSE(Chat().json().contains("prompt_token_ids"));
  const Answer stream = Chat(R"(, "return_token_ids": true, "stream": true)");
  int told = 0;
  for (const std::string& event : stream.events())
    told += event != "[DONE]" && Json::parse(event).contains("prompt_token_ids") ? 1 : 0;
  EXPECT_EQ(told, 1);
  const Answer texts = Complete(R"("prompt": "x", "return_token_ids": true, "stream": true)");
  EXPECT_EQ(Json::parse(texts.events().at(0))["choices"][0]["prompt_token_ids"], Json({1, 'x'}));
}

TEST_F(OpenAiFieldsTest, AChatsEchoIsWhatTheAssistantHasSaid) {
  Listen("ab");
  const auto ask = [this](const std::string& role, const std::string& more) {
    return Ask("POST", "/v1/chat/completions",
               absl::StrCat(R"({"messages": [{"role": ")", role, R"(", "content": "so "}], "echo": true)",
                            more, "}"));
  };
  EXPECT_EQ(ask("assistant", "").json()["choices"][0]["message"]["content"], "so ab");
  EXPECT_EQ(ask("user", "").json()["choices"][0]["message"]["content"], "ab");
  std::string text;
  for (const std::string& event : ask("assistant", R"(, "stream": true)").events()) {
    if (event != "[DONE]") text += Json::parse(event)["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "so ab");
}

TEST_F(OpenAiFieldsTest, ChatsAreTokenized) {
  StartWith(LettersConfig({verifier_.endpoint()}));
  const Json tokens = Ask("POST", "/tokenize",
                          R"({"messages": [{"role": "user", "content": "hi"}], "return_token_strs": true,
                              "add_generation_prompt": false, "chat_template_kwargs": {"a": 1}})")
                          .json();
  EXPECT_EQ(tokens["tokens"], Json({1, 2, 'h', 'i', 3}));
  EXPECT_EQ(tokens["count"], 5);
  EXPECT_EQ(tokens["token_strs"][2], "h");
  EXPECT_EQ(encoder_->Variables(), Json::parse(R"({"a": 1, "add_generation_prompt": false})"));
  EXPECT_EQ(ParamOf(Ask("POST", "/tokenize", R"({"messages": [{"role": "pirate", "content": "hi"}]})")),
            "messages");
  EXPECT_EQ(ParamOf(Ask("POST", "/tokenize", R"({"messages": []})")), "messages");
  EXPECT_EQ(ParamOf(Ask("POST", "/tokenize", R"({"messages": [], "prompt": "a"})")), "prompt");
  EXPECT_EQ(ParamOf(Ask("POST", "/tokenize", "{}")), "prompt");
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"prompt": ""})").json()["count"], 1);
}

TEST_F(OpenAiFieldsTest, ModelsMayHaveSlashes) {
  v1::ServerInfo info;
  v1::ModelInfo& held = *info.add_models();
  held.set_name("letters");
  held.set_context_length(32);
  held.add_adapters()->set_name("org/name");
  verifier_.SetInfo(info);
  verifier_.SetServing(true);
  Start();
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (router_->router().verifiers().Adapters(0).empty() && absl::Now() < end) std::this_thread::yield();
  for (const char* name : {"org/name", "org%2Fname", "org%2fname", "%6frg%2Fname"})
    EXPECT_EQ(Ask("GET", absl::StrCat("/v1/models/", name)).json()["id"], "org/name") << name;
  for (const char* name : {"org%2", "org%zzname", "%00"})
    EXPECT_EQ(Ask("GET", absl::StrCat("/v1/models/", name)).status, 404) << name;
}

TEST_F(OpenAiFieldsTest, ToolsMayHaveTheNamesOfToolServers) {
  Listen("[TOOL_CALLS]files.read/all:1[ARGS]{}");
  const Answer answer =
      Chat(R"(, "tools": [{"type": "function", "function": {"name": "files.read/all:1"}}])");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "files.read/all:1");
}

// A call whose arguments a stop string has cut is none.
TEST_F(OpenAiFieldsTest, AStopStringWithinArgumentsStops) {
  const auto say = [this](const std::string& text, v1::FinishReason reason) {
    verifier_.SetScript([text, reason](StubVerifier::Call& call) {
      call.Send(StartedEvent(call.request()));
      call.Send(ChunkEvent(0, text));
      v1::GenerateResponse finished = FinishedEvent(call.request(), 9);
      finished.mutable_finished()->set_reason(reason);
      if (reason == v1::FINISH_REASON_STOP_STRING) finished.mutable_finished()->set_matched_stop("END");
      call.Send(finished);
      call.Finish(absl::OkStatus());
    });
    return Chat(R"(, "stop": ["END"], "tools": [{"type": "function", "function": {"name": "f"}}])")
        .json()["choices"][0];
  };
  const std::string whole = R"([TOOL_CALLS]f[ARGS]{"a": 1})";
  const std::string cut = R"([TOOL_CALLS]f[ARGS]{"a": "b)";
  Json choice = say(cut, v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "END");
  EXPECT_FALSE(choice["message"].contains("tool_calls")) << choice;
  choice = say(whole + cut, v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u) << "the whole one stays";
  choice = say(whole, v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  // In the Responses API the item says it.
  const Json response =
      Ask("POST", "/v1/responses", R"({"input": "x", "tools": [{"type": "function", "name": "f"}]})").json();
  ASSERT_EQ(response["output"].size(), 1u) << response;
  EXPECT_EQ(response["output"][0]["status"], "completed");
  say(cut, v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(Ask("POST", "/v1/responses", R"({"input": "x", "tools": [{"type": "function", "name": "f"}]})")
                .json()["output"][0]["status"],
            "incomplete");
  // A limit says itself that what there is was cut.
  choice = say(cut, v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": "b)");
}

}  // namespace
}  // namespace tandem::router
