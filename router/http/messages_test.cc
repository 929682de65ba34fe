// Anthropic's Messages API, with a verifier that says what a test wants.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/http/messages_request.h"
#include "router/http/openai_json.h"
#include "router/http/testing/openai_api_fixture.h"
#include "router/testing/stub_verifier.h"

namespace tandem::router {
namespace {

using testing::Answer;
using testing::ChunkEvent;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Saying;
using testing::StartedEvent;
using ::testing::StartsWith;
using testing::StubVerifier;

constexpr char kKey[] = "x-api-key: secret-z\r\nanthropic-version: 2023-06-01\r\n";
constexpr char kHi[] = R"("max_tokens": 20, "messages": [{"role": "user", "content": "hi"}])";
constexpr char kMessageTools[] =
    R"(, "tools": [{"name": "f", "description": "d", "cache_control": {"type": "ephemeral"},
  "input_schema": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}}])";
constexpr char kMessageCalling[] = "<think>hm</think>Ok [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]f[ARGS]{}";

class MessagesTest : public testing::OpenAiApiTest {
 protected:
  void Say(const std::string& text) {
    verifier_.SetScript([this, text](StubVerifier::Call& call) {
      asked_ = call.request();
      Saying(text, 5)(call);
    });
  }
  Answer Post(const std::string& fields, const std::string& head = kKey) {
    return Ask("POST", "/v1/messages", absl::StrCat(R"({"model": "letters", )", fields, "}"), head);
  }
};

v1::ChatPrompt MessageChatOf(const std::string& fields) {
  const absl::StatusOr<CompletionRequest> request =
      ReadMessagesRequest(absl::StrCat(R"({"max_tokens": 9, )", fields, "}"), /*refuse_unknown=*/true);
  EXPECT_TRUE(request.ok()) << request.status() << fields;
  return request.ok() ? request->prompts[0].chat() : v1::ChatPrompt();
}

TEST_F(MessagesTest, AMessageIsAnswered) {
  const Answer answer = Post(kHi);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json();
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["role"], "assistant");
  EXPECT_EQ(json["model"], "letters");
  EXPECT_THAT(json["id"].get<std::string>(), StartsWith("msg_"));
  EXPECT_EQ(json["content"], Json::parse(R"([{"type": "text", "text": "answer"}])"));
  EXPECT_EQ(json["stop_reason"], "end_turn");
  EXPECT_TRUE(json["stop_sequence"].is_null());
  EXPECT_EQ(json["usage"]["input_tokens"], 5);
  EXPECT_EQ(json["usage"]["output_tokens"], 6);
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 0);
  EXPECT_THAT(answer.head, HasSubstr("\r\nRequest-Id: "));
  EXPECT_EQ(Post(kHi, "Authorization: Bearer secret-z\r\n").status, 200);
}

TEST_F(MessagesTest, CallsAndReasoningAreBlocks) {
  Say(kMessageCalling);
  const Json json = Post(absl::StrCat(kHi, kMessageTools)).json();
  ASSERT_EQ(json["content"].size(), 4u) << json;
  EXPECT_EQ(json["content"][0], Json::parse(R"({"type": "thinking", "thinking": "hm", "signature": ""})"));
  EXPECT_EQ(json["content"][1]["text"], "Ok");
  EXPECT_EQ(json["content"][2]["type"], "tool_use");
  EXPECT_EQ(json["content"][2]["name"], "f");
  EXPECT_EQ(json["content"][2]["input"], Json::parse(R"({"a": 1})"));
  EXPECT_EQ(json["content"][3]["input"], Json::object());
  EXPECT_NE(json["content"][2]["id"], json["content"][3]["id"]);
  EXPECT_EQ(json["stop_reason"], "tool_use");
}

TEST_F(MessagesTest, AStreamAddsUpToTheSame) {
  Say(kMessageCalling);
  const Answer answer = Post(absl::StrCat(kHi, kMessageTools, R"(, "stream": true)"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(answer.body, Not(HasSubstr("[DONE]")));
  std::vector<std::string> order;
  std::vector<Json> blocks;
  std::vector<std::string> texts;
  bool open = false;
  for (const std::string& text : answer.events()) {
    const Json event = Json::parse(text);
    const std::string type = event["type"];
    EXPECT_THAT(answer.body, HasSubstr("event: " + type + "\n"));
    if (type == "content_block_start") {
      EXPECT_FALSE(open);
      EXPECT_EQ(event["index"], blocks.size());
      blocks.push_back(event["content_block"]);
      texts.emplace_back();
      open = true;
    } else if (type == "content_block_delta") {
      ASSERT_TRUE(open);
      EXPECT_EQ(event["index"], blocks.size() - 1);
      const Json& delta = event["delta"];
      const std::string kind = delta["type"];
      texts.back() += kind == "input_json_delta" ? delta["partial_json"].get<std::string>()
                      : kind == "thinking_delta" ? delta["thinking"].get<std::string>()
                                                 : delta["text"].get<std::string>();
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(std::exchange(open, false));
    } else {
      order.push_back(type);
      if (type == "message_start") {
        EXPECT_EQ(event["message"]["content"], Json::array());
        EXPECT_EQ(event["message"]["usage"]["input_tokens"], 5);
        EXPECT_TRUE(event["message"]["stop_reason"].is_null());
      } else if (type == "message_delta") {
        EXPECT_EQ(event["delta"]["stop_reason"], "tool_use");
        EXPECT_GT(event["usage"]["output_tokens"].get<int>(), 0);
      }
    }
  }
  EXPECT_THAT(order, ElementsAre("message_start", "ping", "message_delta", "message_stop"));
  EXPECT_THAT(texts, ElementsAre("hm", "Ok", R"({"a": 1})", "{}"));
  EXPECT_EQ(blocks[2]["input"], Json::object());
  EXPECT_EQ(blocks[2]["name"], "f");
}

TEST_F(MessagesTest, EndsHaveTheirReasons) {
  const auto ending = [this](v1::FinishReason reason, const std::string& text, uint32_t tokens) {
    verifier_.SetScript([reason, text, tokens](StubVerifier::Call& call) {
      call.Send(StartedEvent(call.request()));
      call.Send(ChunkEvent(0, text));
      v1::GenerateResponse finished = FinishedEvent(call.request(), tokens);
      finished.mutable_finished()->set_reason(reason);
      if (reason == v1::FINISH_REASON_STOP_STRING) finished.mutable_finished()->set_matched_stop("END");
      finished.mutable_finished()->mutable_usage()->set_cached_prompt_tokens(2);
      call.Send(std::move(finished));
      call.Finish(absl::OkStatus());
    });
    return Post(absl::StrCat(kHi, kMessageTools, R"(, "stop_sequences": ["END"])")).json();
  };
  Json json = ending(v1::FINISH_REASON_MAX_TOKENS, "[TOOL_CALLS]f[ARGS]{\"a\": \"cu", 20);
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  EXPECT_EQ(json["content"][0]["input"], Json::parse(R"({"INVALID_JSON": "{\"a\": \"cu"})"));
  EXPECT_EQ(json["usage"]["input_tokens"], 3);
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 2);
  // The context was full before.
  json = ending(v1::FINISH_REASON_MAX_TOKENS, "abc", 19);
  EXPECT_EQ(json["stop_reason"], "model_context_window_exceeded");
  json = ending(v1::FINISH_REASON_STOP_STRING, "abc", 3);
  EXPECT_EQ(json["stop_reason"], "stop_sequence");
  EXPECT_EQ(json["stop_sequence"], "END");
}

TEST_F(MessagesTest, FieldsReachTheVerifier) {
  Say("x");
  const Answer answer = Post(absl::StrCat(
      kHi, kMessageTools,
      R"(, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop_sequences": ["END", "FIN"], "metadata": {"user_id": "u"},
         "service_tier": "auto", "thinking": {"type": "enabled", "budget_tokens": 1024}, "seed": 4,
         "tool_choice": {"type": "any", "disable_parallel_tool_use": true})"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const v1::VerifierGenerateRequest asked = Asked();
  EXPECT_EQ(asked.sampling().temperature(), 0.5f);
  EXPECT_EQ(asked.sampling().top_p(), 0.25f);
  EXPECT_EQ(asked.sampling().top_k(), 7u);
  EXPECT_EQ(asked.sampling().seed(), 4u);
  EXPECT_EQ(asked.stopping().max_tokens(), 20u);
  EXPECT_THAT(asked.stopping().stop(), ElementsAre("END", "FIN"));
  const v1::StructuralTags& tags = asked.constraint().structural_tags();
  EXPECT_TRUE(tags.at_least_one());
  EXPECT_TRUE(tags.stop_after_first());
  // Members keep their order.
  EXPECT_THAT(tags.tags(0).content().json_schema().schema(), HasSubstr(R"("b":{"type":"integer"},"a")"));
  Post(absl::StrCat(kHi, R"(, "output_config": {"effort": "low", "format": {"type": "json_schema",
                              "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}})"));
  EXPECT_THAT(Asked().constraint().json_schema().schema(), HasSubstr(R"("properties":{"b":{},"a":{}})"));
}

TEST_F(MessagesTest, ChoicesOfToolsAreTheirs) {
  const auto choice_of = [](const std::string& choice) {
    return MessageChatOf(absl::StrCat(R"("messages": [{"role": "user", "content": "x"}])", kMessageTools,
                                      R"(, "tool_choice": )", choice))
        .tool_choice()
        .ShortDebugString();
  };
  EXPECT_EQ(choice_of(R"({"type": "auto"})"), "mode: MODE_AUTO");
  EXPECT_EQ(choice_of(R"({"type": "any"})"), "mode: MODE_REQUIRED");
  EXPECT_EQ(choice_of(R"({"type": "none"})"), "mode: MODE_NONE");
  EXPECT_EQ(choice_of(R"({"type": "tool", "name": "f"})"), "name: \"f\"");
  EXPECT_EQ(choice_of(R"({"type": "auto", "disable_parallel_tool_use": true})"),
            "mode: MODE_AUTO single_call: true");
}

TEST_F(MessagesTest, AConversationIsRead) {
  const v1::ChatPrompt chat =
      MessageChatOf(R"("system": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind",
        "cache_control": {"type": "ephemeral"}}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "d"},
        {"type": "text", "text": "Ok"},
        {"type": "tool_use", "id": "i", "name": "f", "input": {"z": 1, "a": 2}},
        {"type": "tool_use", "id": "j", "name": "f", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "i", "content": "rain"},
        {"type": "tool_result", "tool_use_id": "j", "is_error": true, "content": [{"type": "text", "text": "no"}]},
        {"type": "text", "text": "Go on"}]}])");
  std::vector<std::string> told;
  for (const v1::ChatMessage& message : chat.messages()) {
    told.push_back(absl::StrCat(message.role(), ":", message.content(), "|",
                                absl::StrJoin(message.content_parts(), "|")));
  }
  // Parts stay parts, which templates may tell from a text.
  EXPECT_THAT(told, ElementsAre("system:|be |kind", "user:|a|b", "assistant:|Ok", "tool:rain|", "tool:|no",
                                "user:|Go on"));
  const v1::ChatMessage& calling = chat.messages(2);
  EXPECT_EQ(calling.reasoning(), "t");
  ASSERT_EQ(calling.tool_calls_size(), 2);
  EXPECT_EQ(calling.tool_calls(0).arguments(), R"({"z":1,"a":2})");
  EXPECT_EQ(calling.tool_calls(1).arguments(), "{}");
  EXPECT_EQ(chat.messages(3).tool_call_id(), "i");
  EXPECT_FALSE(chat.continue_final_message());
  // What the assistant has begun goes on.
  EXPECT_TRUE(
      MessageChatOf(
          R"("messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I th"}])")
          .continue_final_message());
  EXPECT_TRUE(
      MessageChatOf(
          R"("messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "I"}]}])")
          .continue_final_message());
  // Unlike an empty text, none at all.
  EXPECT_FALSE(MessageChatOf(R"("messages": [{"role": "assistant", "content": [
                                 {"type": "tool_use", "id": "i", "name": "f", "input": {}}]}])")
                   .messages(0)
                   .has_content());
}

TEST_F(MessagesTest, ToolsOfTheProviderAreLeftOut) {
  Say("x");
  const Answer answer = Post(
      absl::StrCat(kHi, R"(, "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                          {"type": "custom", "name": "f", "input_schema": {"type": "object"}},
                          {"type": "bash_20250124", "name": "bash"}])"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("X-Tandem-Ignored: tools[0], tools[2]\r\n"));
  EXPECT_THAT(Post(kHi).head, Not(HasSubstr("X-Tandem-Ignored")));
}

TEST_F(MessagesTest, CallsThatTheProviderRanAreLeftOut) {
  Say("x");
  const Answer answer = Post(R"("max_tokens": 20, "messages": [{"role": "user", "content": "hi"},
    {"role": "assistant", "content": [
      {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
      {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]},
      {"type": "text", "text": "Ok"}]},
    {"role": "user", "content": "so"}])");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("X-Tandem-Ignored: messages[1].content[0], messages[1].content[1]\r\n"));
  const Answer users = Post(R"("max_tokens": 20, "messages": [{"role": "user", "content": [
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]}])");
  EXPECT_THAT(users.error(), HasSubstr("messages[0].content[0].type: found"));
}

TEST_F(MessagesTest, ABodyMayBeginWithAByteOrderMark) {
  Say("x");
  const Answer answer =
      Ask("POST", "/v1/messages",
          absl::StrCat("\xef\xbb\xbf", R"({"model": "letters", )", kHi, kMessageTools, "}"), kKey);
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST_F(MessagesTest, UnknownFieldsAreIgnoredByName) {
  const std::string fields = R"("max_tokens": 20, "nonsense": 1, "messages": [{"role": "user", "content": [
    {"type": "text", "text": "hi", "more": 1, "cache_control": {"type": "ephemeral"}}]}],
    "tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": {}, "extra": 2}])";
  const std::string told =
      "X-Tandem-Ignored: messages[0].content[0].more, tools[0], tools[1].extra, nonsense\r\n";
  const Answer answer = Post(fields);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr(told));
  const Answer count = Ask("POST", "/v1/messages/count_tokens", absl::StrCat("{", fields, "}"), kKey);
  EXPECT_EQ(count.status, 200) << count.body;
  EXPECT_THAT(count.head, HasSubstr(told));
}

TEST_F(MessagesTest, ATenantMayHaveThemRefused) {
  v1::RouterConfig config = testing::LettersConfig({verifier_.endpoint()});
  for (v1::TenantConfig& tenant : *config.mutable_tenants())
    tenant.set_unknown_fields(v1::UNKNOWN_FIELDS_REFUSE);
  StartWith(config);
  const std::pair<std::string, std::string> kRefused[] = {
      {absl::StrCat(kHi, R"(, "nonsense": 1)"), "nonsense: there is no such field"},
      {absl::StrCat(kHi, R"(, "thinking": {"type": "enabled", "depth": 1})"), "thinking.depth: there is no"},
      {absl::StrCat(kHi, R"(, "tools": [{"type": "bash_20250124", "name": "bash"}])"),
       "tools[0]: not supported"},
  };
  for (const auto& [fields, problem] : kRefused) {
    for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
      const Answer answer = Ask("POST", path, absl::StrCat("{", fields, "}"), kKey);
      EXPECT_EQ(answer.status, 400) << path << fields;
      EXPECT_EQ(answer.json()["type"], "error");
      EXPECT_THAT(answer.error(), HasSubstr(problem));
    }
  }
  EXPECT_EQ(Post(kHi).status, 200);
}

TEST_F(MessagesTest, ErrorsNameItsFields) {
  const std::pair<std::string, std::string> kWrong[] = {
      {absl::StrCat(kHi, R"(, "stop_sequences": ["a", ""])"), "stop_sequences[1]: "},
      {absl::StrCat(kHi, R"(, "stop": ["a", ""])"), "stop[1]: "},
      {absl::StrCat(kHi, R"(, "stop": "a", "stop_sequences": ["b"])"), "stop_sequences: set, and stop"},
      {absl::StrCat(kHi, R"(, "temperature": 1000)"), "temperature: 1000"},
      {absl::StrCat(kHi, R"(, "tools": [{"type": "bash_20250124", "name": "bash"},
                              {"name": "a b", "input_schema": {}}])"),
       "tools[1].name: \"a b\""},
      {absl::StrCat(kHi, R"(, "tools": [{"type": "bash_20250124", "name": "bash"},
                              {"name": "f", "input_schema": {"type": "string"}}])"),
       "tools[1].input_schema.type: found"},
      {absl::StrCat(kHi, R"(, "tool_choice": {"type": "any"})"), "tool_choice.type: REQUIRED"},
      {absl::StrCat(kHi, kMessageTools, R"(, "tool_choice": {"type": "tool", "name": "g"})"),
       "tool_choice.name: \"g\""},
  };
  for (const auto& [fields, problem] : kWrong) {
    const Answer answer = Post(fields);
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
    EXPECT_THAT(answer.error(), StartsWith(problem)) << fields;
  }
  // The verifier's errors as well.
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Finish(absl::InvalidArgumentError("constraint.json_schema.schema: #/properties/a: no"));
  });
  EXPECT_THAT(Post(absl::StrCat(kHi, R"(, "output_config": {"format": {"type": "json_schema",
                              "schema": {"type": "object", "properties": {"a": {}}}}})"))
                  .error(),
              StartsWith("output_config.format.schema.properties.a: no"));
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsForm) {
  const std::pair<std::string, std::string> kWrong[] = {
      {R"("messages": [{"role": "user", "content": "x"}])", "max_tokens: missing"},
      {R"("max_tokens": 0, "messages": [{"role": "user", "content": "x"}])", "max_tokens: found 0"},
      {R"("max_tokens": 4)", "messages: missing"},
      {R"("max_tokens": 4, "messages": [])", "messages: expected a list"},
      {R"("max_tokens": 4, "messages": [{"role": "pirate", "content": "x"}])",
       "messages[0].role: found \"pirate\""},
      {R"("max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}])",
       "messages[0].content[0].type: found \"image\", expected text or tool_result"},
      {R"("max_tokens": 4, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "i"}]}])",
       "messages[0].content[0].name: missing"},
      {R"("max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}])",
       "messages[0].content[0].tool_use_id: missing"},
      {absl::StrCat(kHi, R"(, "tools": [{"name": "f"}])"), "tools[0].input_schema: missing"},
      {absl::StrCat(kHi, R"(, "tools": [{"name": "f", "input_schema": 3}])"),
       "tools[0].input_schema: found 3, expected a JSON schema"},
      {absl::StrCat(kHi, R"(, "tool_choice": {"type": "some"})"), "tool_choice.type: found \"some\""},
      {absl::StrCat(kHi, R"(, "stop_sequences": "x")"),
       "stop_sequences: found \"x\", expected a list of strings"},
      {absl::StrCat(kHi, R"(, "thinking": {"type": "deep"})"), "thinking.type: found \"deep\""},
      {absl::StrCat(kHi, R"(, "output_config": {"format": {"type": "xml"}})"),
       "output_config.format.type: found"},
      {absl::StrCat(kHi, R"(, "mcp_servers": [{}])"), "mcp_servers: not supported"},
  };
  for (const auto& [fields, problem] : kWrong) {
    const Answer answer = Post(fields);
    EXPECT_EQ(answer.status, 400) << fields;
    const Json json = answer.json();
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], "invalid_request_error");
    EXPECT_THAT(json["error"]["message"].get<std::string>(), HasSubstr(problem)) << fields;
  }
  const auto kind = [](const Answer& answer) {
    return absl::StrCat(answer.status, " ", answer.json().value("/error/type"_json_pointer, "none"));
  };
  EXPECT_EQ(kind(Post(kHi, "")), "401 authentication_error");
  EXPECT_EQ(kind(Ask("POST", "/v1/messages", absl::StrCat(R"({"model": "no", )", kHi, "}"), kKey)),
            "404 not_found_error");
  EXPECT_EQ(kind(Ask("GET", "/v1/messages", "", kKey)), "405 invalid_request_error");
  EXPECT_EQ(kind(Ask("POST", "/v1/messages/batches", "{}", kKey)), "404 not_found_error");
  verifier_.SetScript([](StubVerifier::Call& call) { call.Finish(absl::InternalError("broken")); });
  EXPECT_EQ(kind(Post(kHi)), "500 api_error");
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "par"));
    call.Finish(absl::InvalidArgumentError("no more"));
  });
  const Answer stream = Post(absl::StrCat(kHi, R"(, "stream": true)"));
  EXPECT_EQ(stream.status, 200);
  EXPECT_THAT(stream.body, HasSubstr("event: error\n"));
  EXPECT_EQ(Json::parse(stream.events().back())["error"]["type"], "invalid_request_error");
}

TEST_F(MessagesTest, TokensOfAPromptAreCounted) {
  const auto count = [this](const std::string& body) {
    return Ask("POST", "/v1/messages/count_tokens", body, kKey);
  };
  const std::string hi = R"("messages": [{"role": "user", "content": "hi"}])";
  EXPECT_EQ(count(absl::StrCat(R"({"model": "letters", )", hi, "}")).json(), Json({{"input_tokens", 5}}));
  // A system message of two letters, and its role.
  EXPECT_EQ(count(absl::StrCat(R"({"system": "be", )", hi, kMessageTools, "}")).json()["input_tokens"], 8);
  const Answer wrong = count(R"({"messages": 3})");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(wrong.json()["type"], "error");
  EXPECT_EQ(count(absl::StrCat(R"({"model": "none", )", hi, "}")).json()["error"]["type"], "not_found_error");
}

}  // namespace
}  // namespace tandem::router
