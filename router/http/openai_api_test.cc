#include "router/http/openai_api.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/http/server/http_server.h"
#include "router/http/testing/openai_api_fixture.h"
#include "router/testing/client_call.h"
#include "router/testing/http_connection.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::Answer;
using testing::ChunkEvent;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::HttpConnection;
using ::testing::IsEmpty;
using testing::LettersConfig;
using ::testing::Not;
using testing::OpenAiApiTest;
using testing::Saying;
using testing::StartedEvent;
using ::testing::StartsWith;
using testing::StubVerifier;
using testing::TestRouter;

TEST_F(OpenAiApiTest, AChatIsAnswered) {
  const Answer answer = Chat();
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: application/json"));
  const Json json = answer.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "letters");
  EXPECT_THAT(json["id"].get<std::string>(), StartsWith("chatcmpl-"));
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "answer");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
  // A chat of one message of two letters: begin, role, letters, and where the answer begins.
  EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(json["usage"]["total_tokens"], 11);
}

TEST_F(OpenAiApiTest, AStreamHasTheSameText) {
  const Answer answer = Chat(R"(, "stream": true, "stream_options": {"include_usage": true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/event-stream"));
  std::vector<std::string> events = answer.events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  const Json usage = Json::parse(events.back());
  EXPECT_THAT(usage["choices"], IsEmpty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 6);
  events.pop_back();
  std::string text;
  for (const std::string& event : events) {
    const Json json = Json::parse(event);
    EXPECT_EQ(json["object"], "chat.completion.chunk");
    EXPECT_TRUE(json["usage"].is_null());
    text += json["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "answer");
  EXPECT_EQ(Json::parse(events.front())["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(Json::parse(events.back())["choices"][0]["finish_reason"], "stop");
}

TEST_F(OpenAiApiTest, AStreamCountsAsItGoes) {
  const Answer answer =
      Chat(R"(, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::vector<int> counts;
  for (const std::string& event : answer.events()) {
    if (event == "[DONE]") continue;
    const Json usage = Json::parse(event)["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 5);
    EXPECT_EQ(usage["total_tokens"].get<int>(), 5 + usage["completion_tokens"].get<int>());
    counts.push_back(usage["completion_tokens"]);
  }
  ASSERT_GE(counts.size(), 4u);
  EXPECT_EQ(counts.front(), 0);
  EXPECT_TRUE(std::is_sorted(counts.begin(), counts.end()));
  EXPECT_EQ(counts.back(), 6);
}

TEST_F(OpenAiApiTest, FieldsReachTheVerifier) {
  verifier_.SetScript([this](StubVerifier::Call& call) {
    asked_ = call.request();
    Saying("x", 1)(call);
  });
  const Answer answer = Chat(
      R"(, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": -1, "presence_penalty": 0.5,
         "frequency_penalty": 0.75, "repetition_penalty": 1.5, "logit_bias": {"65": -100}, "max_completion_tokens": 9,
         "stop": "END", "stop_token_ids": [66], "ignore_eos": true, "logprobs": true, "top_logprobs": 3,
         "skip_special_tokens": false, "tandem": {"speculation": false}, "user": "somebody")");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const v1::SamplingParameters& sampling = asked_.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_p(), 0.25f);
  EXPECT_EQ(sampling.top_k(), 7u);
  EXPECT_EQ(sampling.min_p(), 0.125f);
  EXPECT_EQ(sampling.seed(), ~uint64_t{0});
  EXPECT_EQ(sampling.presence_penalty(), 0.5f);
  EXPECT_EQ(sampling.frequency_penalty(), 0.75f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5f);
  EXPECT_EQ(sampling.logit_bias().at(65), -100.0f);
  EXPECT_EQ(asked_.stopping().max_tokens(), 9u);
  EXPECT_THAT(asked_.stopping().stop(), ElementsAre("END"));
  EXPECT_THAT(asked_.stopping().stop_token_ids(), ElementsAre(66));
  EXPECT_TRUE(asked_.stopping().ignore_eos());
  EXPECT_EQ(asked_.output().logprobs(), 3u);
  EXPECT_TRUE(asked_.output().include_special_tokens());
  EXPECT_EQ(asked_.speculation().mode(), v1::SPECULATION_MODE_OFF);
}

TEST_F(OpenAiApiTest, WhatHasNoEffectHereIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"("best_of": 3)", "best_of: "},
      {R"("response_format": {"type": "xml"})", "response_format.type: found \"xml\""},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema: missing"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})", "schema: missing"},
      {R"("guided_regex": "a", "guided_grammar": "root ::= \"a\"")", "more than one format"},
      {R"("guided_choice": "a")", "guided_choice: expected a list"},
      {R"("tools": [{"type": "function"}])", "tools[0].name: missing"},
      {R"("tools": [{"type": "web_search"}])", "tools[0].type: found"},
      {R"("tools": [{"type": "function", "function": {"name": "a b"}}])", "tools[0].function.name: \"a b\""},
      {R"("tool_choice": "sometimes")", "tool_choice: "},
      {R"("tool_choice": "required")", "tool_choice: REQUIRED, but there are no tools"},
      {R"("functions": [{"name": "f"}])", "functions: "},
      {R"("chat_template_kwargs": 1)", "chat_template_kwargs: "},
      {R"("temperature": "hot")", "temperature: found \"hot\""},
      {R"("top_k": 1.5)", "top_k: "},
      {R"("max_tokens": -1)", "max_tokens: found -1"},
      {R"("max_tokens": 3, "max_completion_tokens": 4)", "max_tokens: differs"},
      {R"("stop": [1])", "stop: "},
      {R"("logit_bias": {"x": 1})", "logit_bias: "},
      {R"("top_logprobs": 2)", "top_logprobs: set, but logprobs is not"},
      {R"("stream_options": {"include_usage": true})", "stream_options: set, but stream is not"},
      {R"("tandem": {"depth": 3})", "tandem.depth"},
      {R"("tandem": 3)", "tandem: expected an object"},
      {R"("continue_final_message": true, "add_generation_prompt": true)", "add_generation_prompt: "},
      {R"("temperature": 1000)", "temperature: 1000, expected [0, 100]"},
      {R"("cache_salt": "")", "cache_salt: empty"},
      {R"("truncate_prompt_tokens": 0)", "truncate_prompt_tokens: 0"},
      {R"("kv_transfer_params": {"a": 1})", "kv_transfer_params: "},
      {R"("vllm_xargs": {"a": 1})", "vllm_xargs: "},
      {R"("grammar": "root ::= [a]")", "grammar: not supported; expected guided_grammar"},
      {R"("json_schema": {"type": "object"})", "json_schema: not supported; expected response_format"},
      {R"("regex": "a")", "regex: not supported; expected guided_regex"},
      {R"("guided_whitespace_pattern": " *")", "guided_whitespace_pattern: "},
      {R"("reasoning_effort": "some")", "reasoning_effort: found \"some\", expected one of"},
      {R"("documents": "none")", "documents: found \"none\""},
      {R"("documents": [1])", "documents[0]: found 1"},
      {R"("max_output_tokens": 3)", "max_output_tokens: expected max_completion_tokens"},
      {R"("temperature": 0.5, "temperature": 0.7)", "temperature"},
      {R"("length_penalty": 0.5)", "length_penalty: expected 1"},
      {R"("moderation": {"model": "m"})", "moderation: "},
      {R"("include_reasoning": false)", "include_reasoning: expected true"},
      {R"("add_special_tokens": true)", "add_special_tokens: expected false"},
  };
  for (const auto& [field, message] : refused) {
    const Answer answer = Chat(", " + field);
    EXPECT_EQ(answer.status, 400) << field;
    EXPECT_THAT(answer.error(), HasSubstr(message)) << field;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error") << field;
  }
  EXPECT_EQ(verifier_.num_calls(), 0);
  EXPECT_EQ(
      Chat(
          R"(, "n": 1, "temperature": null, "tools": [], "tool_choice": "auto", "response_format": {"type": "text"},
             "length_penalty": 1.0, "include_reasoning": true, "spaces_between_special_tokens": true,
             "prompt_cache_options": {}, "add_special_tokens": false, "return_tokens_as_token_ids": false)")
          .status,
      200);
}

TEST_F(OpenAiApiTest, FormatsAreConstraints) {
  verifier_.SetScript([this](StubVerifier::Call& call) {
    asked_ = call.request();
    Saying("x", 1)(call);
  });
  // Properties keep the order that they have in the body, and numbers their digits.
  const std::string schema =
      R"({"type":"object","properties":{"b":{"const":123456789012345678901234567890},"a":{"maximum":1.50}}})";
  for (
      const std::string& field :
      {absl::StrCat(
           R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": )",
           schema, "}}"),
       absl::StrCat(R"("guided_json": )", absl::StrReplaceAll(schema, {{",", " ,\n"}})),
       absl::StrCat(R"("structured_outputs": {"json": )", schema, "}")}) {
    ASSERT_EQ(Chat(", " + field).status, 200) << field;
    EXPECT_EQ(asked_.constraint().json_schema().schema(), schema) << field;
    EXPECT_TRUE(asked_.constraint().json_schema().any_whitespace()) << field;
  }
  ASSERT_EQ(Chat(R"(, "response_format": {"type": "json_object"})").status, 200);
  EXPECT_TRUE(asked_.constraint().json_object().any_whitespace());
  constexpr char kCompact[] = R"(, "structured_outputs": {"disable_any_whitespace": true})";
  ASSERT_EQ(Chat(absl::StrCat(R"(, "response_format": {"type": "json_object"})", kCompact)).status, 200);
  EXPECT_TRUE(asked_.constraint().has_json_object());
  // Other servers take a schema beside it.
  ASSERT_EQ(
      Chat(R"(, "response_format": {"type": "json_object", "schema": {"type": "object", "b": 1, "a": 2.50}})")
          .status,
      200);
  EXPECT_EQ(asked_.constraint().json_schema().schema(), R"({"type":"object","b":1,"a":2.50})");
  EXPECT_FALSE(asked_.constraint().json_object().any_whitespace());
  ASSERT_EQ(Chat(R"(, "guided_regex": "a+")").status, 200);
  EXPECT_EQ(asked_.constraint().regex(), "a+");
  ASSERT_EQ(Chat(R"(, "structured_outputs": {"choice": ["a", "b"]})").status, 200);
  EXPECT_THAT(asked_.constraint().choices().choices(), ElementsAre("a", "b"));
  ASSERT_EQ(Chat().status, 200);
  EXPECT_FALSE(asked_.has_constraint());
  const std::string tags = R"({"triggers": ["<f"], "structures": [)";
  const std::string tag = R"({"begin": "<f>", "end": "</f>", "schema": {"const": 1.50}})";
  ASSERT_EQ(Chat(absl::StrCat(R"(, "structural_tag": )", tags, tag, "]}")).status, 200);
  EXPECT_EQ(asked_.constraint().structural_tags().tags(0).content().json_schema().schema(),
            R"({"const":1.50})");
  std::string many = tag;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&many, ",", tag);
  const Answer refused = Chat(absl::StrCat(R"(, "structural_tag": )", tags, many, "]}"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error(), HasSubstr("structural_tag.structures: 1001 of them, expected at most 1000"));
}

TEST_F(OpenAiApiTest, MessagesThatCannotBeReadAreNamed) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"({"model": "letters"})", "messages: missing"},
      {R"({"messages": "hi"})", "messages: expected a list"},
      {R"({"messages": []})", "messages: empty"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content: missing"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role: missing"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
       "messages[0].content[0].type: found \"image_url\""},
      {R"({"messages": [{"role": "pirate", "content": "x"}]})", "messages: no role pirate"},
      {R"([])", "body: expected a JSON object"},
      {R"({"messages": )", "body: byte"},
      {std::string(200, '['), "nested too deep"},
  };
  for (const auto& [body, message] : refused) {
    const Answer answer = Ask("POST", "/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_THAT(answer.error(), HasSubstr(message)) << body;
  }
  const Answer parts = Ask("POST", "/v1/chat/completions",
                           R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "h"},
                                                                         {"type": "text", "text": "i"}]}]})");
  EXPECT_EQ(parts.json()["usage"]["prompt_tokens"], 5);
}

TEST_F(OpenAiApiTest, TextsAreCompleted) {
  const Json json = Complete(R"("prompt": "ab")").json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"][0]["text"], "answer");
  EXPECT_EQ(Complete(R"("prompt": "ab", "echo": true)").json()["choices"][0]["text"], "abanswer");
  EXPECT_EQ(Complete(R"("prompt": [97, 98], "echo": true)").json()["choices"][0]["text"], "abanswer");
  EXPECT_EQ(Complete(R"("prompt": [97, 98])").json()["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(Complete(R"("prompt": [])").status, 400);
  EXPECT_EQ(Complete(R"("prompt": [[97], "b", []])").status, 400);
  EXPECT_EQ(Complete(R"("suffix": "x", "prompt": "a")").status, 400);
}

TEST_F(OpenAiApiTest, SeveralPromptsAreSeveralChoices) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    // What was asked, back: the prompt's last token.
    const uint32_t last = call.request().prompt().ids(call.request().prompt().ids_size() - 1);
    Saying(std::string(1, static_cast<char>(last)), 1)(call);
  });
  const Json json = Complete(R"("prompt": ["a", "b", "c"])").json();
  ASSERT_EQ(json["choices"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], std::string(1, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  std::string texts[3];
  const Answer stream = Complete(R"("prompt": ["a", "b", "c"], "stream": true)");
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
  }
  EXPECT_THAT(texts, ElementsAre("a", "b", "c"));
}

TEST_F(OpenAiApiTest, LogProbabilitiesHaveTheShapeOfEachApi) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    v1::GenerateResponse chunk = ChunkEvent(0, "ab");
    for (int i = 0; i < 2; ++i) {
      v1::TokenDetail& detail = *chunk.mutable_chunk()->mutable_details(i);
      detail.set_logprob(-0.5f);
      detail.set_text_bytes(1);
      v1::TokenLogprob& top = *detail.add_top_logprobs();
      top.set_token('z');
      top.set_logprob(-0.25f);
    }
    call.Send(std::move(chunk));
    call.Send(FinishedEvent(call.request(), 2));
    call.Finish(absl::OkStatus());
  });
  const Json chat =
      Chat(R"(, "logprobs": true, "top_logprobs": 1)").json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(chat.size(), 2u);
  EXPECT_EQ(chat[1]["token"], "b");
  EXPECT_EQ(chat[1]["logprob"], -0.5);
  EXPECT_THAT(chat[1]["bytes"], ElementsAre('b'));
  EXPECT_EQ(chat[1]["top_logprobs"][0]["token"], "z");
  const Json text = Complete(R"("prompt": "x", "logprobs": 1)").json()["choices"][0]["logprobs"];
  EXPECT_THAT(text["tokens"], ElementsAre("a", "b"));
  EXPECT_THAT(text["token_logprobs"], ElementsAre(-0.5, -0.5));
  EXPECT_THAT(text["text_offset"], ElementsAre(0, 1));
  EXPECT_EQ(text["top_logprobs"][0]["z"], -0.25);
  EXPECT_TRUE(Chat().json()["choices"][0]["logprobs"].is_null());
}

TEST_F(OpenAiApiTest, ErrorsHaveTheStatusOfTheirKind) {
  const Answer unknown = Ask("POST", "/v1/completions", R"({"model": "none", "prompt": "x"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(unknown.json()["error"]["param"], "model");
  verifier_.SetScript([](StubVerifier::Call& call) { call.Finish(absl::InternalError("broken")); });
  EXPECT_EQ(Chat().status, 500);
  const Answer method = Ask("GET", "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.json()["error"]["code"], "method_not_supported");
  EXPECT_TRUE(method.json()["error"]["param"].is_null());
  const Answer path = Ask("GET", "/v1/unknown");
  EXPECT_EQ(path.status, 404);
  EXPECT_EQ(path.json()["error"]["code"], "unknown_url");
}

TEST_F(OpenAiApiTest, WhatFailsHalfWayIsTheStreamsLastWord) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "par"));
    call.Finish(absl::InvalidArgumentError("no more"));
  });
  const Answer answer = Chat(R"(, "stream": true)");
  EXPECT_EQ(answer.status, 200);
  const std::vector<std::string> events = answer.events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE(Json::parse(events[events.size() - 2]).contains("error"));
}

TEST_F(OpenAiApiTest, CallersThatNobodyKnowsAreRefusedBeforeTheirBody) {
  Start();
  for (const std::string fields : {"", "Authorization: Bearer wrong\r\n", "Authorization: secret-z\r\n",
                                   "Authorization: Bearer secret-z\r\nAuthorization: Bearer secret-z\r\n"}) {
    HttpConnection connection(server_->port(), absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: a\r\n",
                                                            fields, "Content-Length: 1000000\r\n\r\n"));
    const Answer answer(connection.ReadAll());
    EXPECT_EQ(answer.status, 401) << fields;
    EXPECT_THAT(answer.head, HasSubstr("WWW-Authenticate: Bearer"));
    EXPECT_EQ(answer.json()["error"]["code"], "invalid_api_key");
  }
  EXPECT_EQ(Ask("GET", "/v1/unknown", "", "").status, 401) << "what there is shows to those who are known";
  EXPECT_EQ(Ask("GET", "/version", "", "").status, 200);
}

TEST_F(OpenAiApiTest, ATenantsPlacesCountOverHttpToo) {
  verifier_.SetScript(nullptr);
  Start();
  // "acme" has two places and no queue.
  const std::string text =
      RequestText("POST", "/v1/completions", R"({"prompt": "x"})", "Authorization: Bearer secret-a\r\n");
  HttpConnection first(server_->port(), text);
  HttpConnection second(server_->port(), text);
  ASSERT_NE(verifier_.NextCall(), nullptr);
  ASSERT_NE(verifier_.NextCall(), nullptr);
  const Answer third =
      Ask("POST", "/v1/completions", R"({"prompt": "x"})", "Authorization: Bearer secret-a\r\n");
  EXPECT_EQ(third.status, 429) << third.body;
  EXPECT_THAT(third.head, HasSubstr("Retry-After: "));
}

TEST_F(OpenAiApiTest, AClientThatGoesAwayCancelsItsGeneration) {
  verifier_.SetScript(nullptr);
  Start();
  for (const std::string stream : {"true", "false"}) {
    HttpConnection connection(
        server_->port(),
        RequestText("POST", "/v1/completions", absl::StrCat(R"({"prompt": "x", "stream": )", stream, "}"),
                    "Authorization: Bearer secret-z\r\n"));
    const std::shared_ptr<StubVerifier::Call> call = verifier_.NextCall();
    ASSERT_NE(call, nullptr);
    call->Send(StartedEvent(call->request()));
    connection.Close();
    EXPECT_TRUE(call->WaitForCancel());
    call->Finish(absl::CancelledError(""));
  }
}

TEST_F(OpenAiApiTest, ATenantHasSoManyConnectionsAtOnce) {
  Start({.connections_per_tenant = 1});
  const std::string get = "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret-z\r\n\r\n";
  HttpConnection first(server_->port(), get);
  EXPECT_THAT(first.ReadUntil("}]}"), StartsWith("HTTP/1.1 200"));
  ASSERT_TRUE(first.Send(get));
  EXPECT_THAT(first.ReadUntil("}]}"), StartsWith("HTTP/1.1 200")) << "the same connection counts once";
  EXPECT_EQ(Ask("GET", "/v1/models").status, 429);
  EXPECT_EQ(Ask("GET", "/v1/models", "", "Authorization: Bearer secret-a\r\n").status, 200);
  first.Close();
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (server_->num_connections() > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(Ask("GET", "/v1/models").status, 200);
}

TEST_F(OpenAiApiTest, AnAdapterIsAModelWithAParent) {
  v1::ServerInfo info;
  v1::ModelInfo& held = *info.add_models();
  held.set_name("letters");
  held.set_context_length(32);
  held.add_adapters()->set_name("own");
  held.add_adapters()->set_name("others");
  verifier_.SetInfo(info);
  verifier_.SetServing(true);
  verifier_.SetScript([this](StubVerifier::Call& call) {
    asked_ = call.request();
    v1::GenerateResponse started = StartedEvent(call.request());
    started.mutable_started()->set_adapter(call.request().adapter());
    call.Send(started);
    call.Send(ChunkEvent(0, "answer"));
    call.Send(FinishedEvent(call.request(), 6));
    call.Finish(absl::OkStatus());
  });
  v1::RouterConfig config = LettersConfig({verifier_.endpoint()});
  config.mutable_tenants(1)->add_allowed_adapters("own");
  router_ = std::make_unique<TestRouter>(config);
  api_ = std::make_unique<OpenAiApi>(OpenAiApi::Options{}, &router_->router(), nullptr);
  server_ = HttpServer::Start({.address = "127.0.0.1:0"}, api_.get()).value();
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (router_->router().verifiers().Adapters(0).empty() && absl::Now() < end) std::this_thread::yield();

  const Json models = Ask("GET", "/v1/models").json();
  ASSERT_EQ(models["data"].size(), 2u) << models;
  EXPECT_EQ(models["data"][0].count("parent"), 0u);
  EXPECT_EQ(models["data"][1]["id"], "own");
  EXPECT_EQ(models["data"][1]["parent"], "letters");
  EXPECT_EQ(Ask("GET", "/v1/models/own").json()["parent"], "letters");
  EXPECT_EQ(Ask("GET", "/v1/models/others").status, 404);

  Answer answer = Ask("POST", "/v1/completions", R"({"model": "own", "prompt": "a"})");
  EXPECT_EQ(answer.json()["model"], "own") << answer.body;
  EXPECT_EQ(asked_.model(), "letters");
  EXPECT_EQ(asked_.adapter(), "own");
  answer = Ask("POST", "/v1/completions", R"({"model": "letters", "prompt": "a"})");
  EXPECT_EQ(answer.json()["model"], "letters") << answer.body;
  EXPECT_EQ(asked_.adapter(), "");
  answer =
      Ask("POST", "/v1/completions", R"({"model": "letters", "prompt": "a", "tandem": {"adapter": "own"}})");
  EXPECT_EQ(asked_.adapter(), "own");
  EXPECT_EQ(Ask("POST", "/v1/completions", R"({"model": "others", "prompt": "a"})").status, 404);
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"model": "own", "prompt": "ab"})").json()["count"], 3);
}

TEST_F(OpenAiApiTest, ModelsAndTokensAreTold) {
  const Json models = Ask("GET", "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "letters");
  EXPECT_EQ(models["data"][0]["max_model_len"], 32);
  EXPECT_EQ(Ask("GET", "/v1/models/letters").json()["id"], "letters");
  EXPECT_EQ(Ask("GET", "/v1/models/none").status, 404);
  const Json tokens = Ask("POST", "/tokenize", R"({"prompt": "ab", "return_token_strs": true})").json();
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_THAT(tokens["tokens"], ElementsAre(1, 'a', 'b'));
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"prompt": "ab", "add_special_tokens": false})").json()["count"], 2);
  EXPECT_EQ(Ask("POST", "/detokenize", R"({"tokens": [97, 98]})").json()["prompt"], "ab");
  EXPECT_EQ(Ask("POST", "/detokenize", R"({"tokens": [97, 9800]})").status, 400);
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"prompt": 3})").status, 400);
}

TEST_F(OpenAiApiTest, HealthFollowsWhoCanBeServed) {
  bool ready = false;
  Start({.ready = [&ready] { return ready; }});
  EXPECT_EQ(Ask("GET", "/health", "", "").status, 503);
  ready = true;
  EXPECT_EQ(Ask("GET", "/health", "", "").status, 200);
  EXPECT_EQ(Ask("GET", "/ping", "", "").status, 200);
}

TEST_F(OpenAiApiTest, PagesOfOtherOriginsCallOnlyWhereThatIsAllowed) {
  Start({.allowed_origins = {"https://chat.example"}});
  const std::string from = "Authorization: Bearer secret-z\r\nOrigin: ";
  const std::string allowed = "Access-Control-Allow-Origin: https://chat.example";
  EXPECT_THAT(Ask("GET", "/v1/models", "", from + "https://chat.example\r\n").head, HasSubstr(allowed));
  EXPECT_THAT(Ask("GET", "/v1/models", "", from + "https://other.example\r\n").head,
              Not(HasSubstr("Access-Control-Allow-Origin")));
  const Answer preflight = Ask("OPTIONS", "/v1/models", "", "Origin: https://chat.example\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_THAT(preflight.head, HasSubstr(allowed));
}

TEST_F(OpenAiApiTest, ARequestKeepsTheIdThatItCameWith) {
  verifier_.SetScript([this](StubVerifier::Call& call) {
    asked_ = call.request();
    Saying("x", 1)(call);
  });
  const Answer answer = Ask("POST", "/v1/completions", R"({"prompt": "x"})",
                            "Authorization: Bearer secret-z\r\nX-Request-Id: mine-1\r\n");
  EXPECT_THAT(answer.head, HasSubstr("X-Request-Id: mine-1"));
  EXPECT_EQ(asked_.request_id(), "mine-1");
  EXPECT_EQ(answer.json()["id"], "cmpl-mine-1");
}

}  // namespace
}  // namespace tandem::router
