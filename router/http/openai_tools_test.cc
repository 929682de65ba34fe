// Tools, reasoning and the Responses API over HTTP, with a verifier that says what a test wants.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/http/openai_json.h"
#include "router/http/testing/openai_api_fixture.h"

namespace tandem::router {
namespace {

using testing::Answer;
using ::testing::HasSubstr;
using testing::Saying;
using ::testing::StartsWith;
using testing::StubVerifier;

constexpr char kTools[] = R"(, "tools": [{"type": "function", "function": {"name": "f", "description": "d",
  "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}])";
constexpr char kCalling[] = "<think>hm</think>Ok [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]f[ARGS]{}";

class OpenAiToolsTest : public testing::OpenAiApiTest {
 protected:
  void Say(const std::string& text) {
    verifier_.SetScript([this, text](StubVerifier::Call& call) {
      asked_ = call.request();
      Saying(text, 5)(call);
    });
  }
  Answer Respond(const std::string& more) {
    return Ask("POST", "/v1/responses", absl::StrCat(R"({"model": "letters", )", more, "}"));
  }
};

TEST_F(OpenAiToolsTest, CallsAndReasoningStandInTheMessage) {
  Say(kCalling);
  const Answer answer = Chat(kTools);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json message = answer.json()["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Ok");
  EXPECT_EQ(message["reasoning_content"], "hm");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"a": 1})");
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(answer.json()["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_FALSE(asked_.has_constraint());

  Say("[TOOL_CALLS]f[ARGS]{}");
  EXPECT_TRUE(Chat(kTools).json()["choices"][0]["message"]["content"].is_null());
  // Without this tool in the request, the text is content.
  EXPECT_EQ(Chat().json()["choices"][0]["message"]["content"], "[TOOL_CALLS]f[ARGS]{}");
  EXPECT_EQ(Chat(absl::StrCat(kTools, R"(, "tool_choice": "none")")).json()["choices"][0]["finish_reason"],
            "stop");
}

TEST_F(OpenAiToolsTest, AStreamHasTheSamePieceByPiece) {
  Say(kCalling);
  const Answer answer = Chat(absl::StrCat(kTools, R"(, "stream": true)"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::string content;
  std::string reasoning;
  std::vector<Json> calls;
  std::string finish_reason;
  for (const std::string& event : answer.events()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    const Json& delta = choice["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    if (choice["finish_reason"].is_string()) finish_reason = choice["finish_reason"];
    for (const Json& piece : delta.value("tool_calls", Json::array())) {
      const size_t index = piece["index"];
      if (index == calls.size()) {
        EXPECT_EQ(piece["type"], "function");
        EXPECT_FALSE(piece["id"].get<std::string>().empty());
        calls.push_back({{"name", piece["function"]["name"]}, {"arguments", ""}});
      }
      calls.at(index)["arguments"] =
          calls[index]["arguments"].get<std::string>() + piece["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(content, "Ok");
  EXPECT_EQ(reasoning, "hm");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0], Json({{"name", "f"}, {"arguments", R"({"a": 1})"}}));
  EXPECT_EQ(finish_reason, "tool_calls");
}

constexpr char kCustomTools[] = R"(, "tools": [
  {"type": "custom", "custom": {"name": "patch", "description": "Edits.",
   "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"B\""}}}},
  {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
  {"type": "custom", "custom": {"name": "note", "format": {"type": "text"}}}])";

TEST_F(OpenAiToolsTest, ToolsMayTakeATextInPlaceOfArguments) {
  const std::string said =
      R"([TOOL_CALLS]patch[ARGS]{"input": "a\n\ud83d\ude00\"b\\"}[TOOL_CALLS]f[ARGS]{"b": 2})"
      R"([TOOL_CALLS]note[ARGS]{"text": 1})";
  const Json expected = {
      {{"type", "custom"}, {"custom", {{"name", "patch"}, {"input", "a\n\xf0\x9f\x98\x80\"b\\"}}}},
      {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", R"({"b": 2})"}}}},
      // Arguments of another form, which a tool without a grammar may get, are the text.
      {{"type", "custom"}, {"custom", {{"name", "note"}, {"input", R"({"text": 1})"}}}}};
  Say(said);
  const Answer answer = Chat(kCustomTools);
  ASSERT_EQ(answer.status, 200) << answer.body;
  Json calls = answer.json()["choices"][0]["message"]["tool_calls"];
  for (Json& call : calls) EXPECT_EQ(call.erase("id"), 1u);
  EXPECT_EQ(calls, expected);
  EXPECT_EQ(answer.json()["choices"][0]["finish_reason"], "tool_calls");
  const v1::StructuralTags tags = Asked().constraint().structural_tags();
  EXPECT_EQ(tags.tags(0).content().json_string().lark(), "start: \"B\"");

  for (const size_t chunk_bytes : {size_t{1}, size_t{3}, size_t{7}, said.size()}) {
    verifier_.SetScript([said, chunk_bytes](StubVerifier::Call& call) { Saying(said, chunk_bytes)(call); });
    Json told = Json::array();
    for (const std::string& event : Chat(absl::StrCat(kCustomTools, R"(, "stream": true)")).events()) {
      if (event == "[DONE]") continue;
      const Json delta = Json::parse(event)["choices"][0]["delta"];
      for (Json piece : delta.value("tool_calls", Json::array())) {
        const size_t index = piece["index"];
        piece.erase("index");
        if (index == told.size()) {
          EXPECT_EQ(piece.erase("id"), 1u);
          told.push_back(piece);
          continue;
        }
        const char* const kind = piece.contains("custom") ? "custom" : "function";
        for (const auto& [name, value] : piece.at(kind).items()) {
          std::string& text = told.at(index).at(kind).at(name).get_ref<std::string&>();
          text += value.get<std::string>();
        }
      }
    }
    EXPECT_EQ(told, expected) << chunk_bytes;
  }
}

TEST_F(OpenAiToolsTest, CallsOfToolsThatTakeATextComeBack) {
  Say("x");
  const auto ask = [this](const std::string& call) {
    return Ask("POST", "/v1/chat/completions",
               absl::StrCat(
                   R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [)",
                   call, "]}]", kCustomTools, "}"));
  };
  EXPECT_EQ(ask(R"({"id": "i", "type": "custom", "custom": {"name": "patch", "input": "B"}})").status, 200);
  const std::pair<std::string, std::string> kWrong[] = {
      {R"({"id": "i", "type": "custom"})", "messages[1].tool_calls[0].custom"},
      {R"({"id": "i", "type": "custom", "custom": {"input": "B"}})", "messages[1].tool_calls[0].custom.name"},
      {R"({"id": "i", "type": "custom", "custom": {"name": "patch", "input": 1}})",
       "messages[1].tool_calls[0].custom.input"},
  };
  for (const auto& [call, param] : kWrong) EXPECT_EQ(ask(call).json()["error"]["param"], param) << call;
  const auto choose = [this](const std::string& choice) {
    return Chat(absl::StrCat(kCustomTools, R"(, "tool_choice": )", choice));
  };
  EXPECT_EQ(choose(R"({"type": "custom", "custom": {"name": "note"}})").status, 200);
  EXPECT_TRUE(Asked().constraint().structural_tags().at_least_one());
  EXPECT_EQ(choose(R"({"type": "custom", "custom": {"name": "no"}})").json()["error"]["param"],
            "tool_choice.custom.name");
  EXPECT_EQ(choose(R"({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                          {"type": "custom", "custom": {"name": "note"}}]}})")
                .status,
            200);
  EXPECT_EQ(Asked().constraint().structural_tags().tags_size(), 1);
  const Answer wrong = Chat(R"(, "tools": [{"type": "custom", "custom": {"name": "p", "format": {
      "type": "grammar", "grammar": {"syntax": "abnf", "definition": "x"}}}}])");
  EXPECT_EQ(wrong.json()["error"]["param"], "tools[0].custom.format.grammar.syntax") << wrong.body;
}

TEST_F(OpenAiToolsTest, ChoicesConstrain) {
  Say("x");
  EXPECT_EQ(Chat(absl::StrCat(kTools, R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})"))
                .status,
            200);
  v1::StructuralTags tags = Asked().constraint().structural_tags();
  EXPECT_TRUE(tags.at_least_one());
  EXPECT_TRUE(tags.stop_after_first());
  EXPECT_EQ(tags.tags(0).content().json_schema().schema(),
            R"({"type":"object","properties":{"a":{"type":"integer"}}})");
  Chat(absl::StrCat(kTools, R"(, "tool_choice": "required")"));
  EXPECT_FALSE(Asked().constraint().structural_tags().stop_after_first());
  EXPECT_TRUE(Asked().constraint().structural_tags().only_tags());
  Chat(absl::StrCat(kTools, R"(, "parallel_tool_calls": false)"));
  tags = Asked().constraint().structural_tags();
  EXPECT_FALSE(tags.at_least_one());
  EXPECT_TRUE(tags.stop_after_first());
  const Answer wrong =
      Chat(absl::StrCat(kTools, R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})"));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(wrong.json()["error"]["param"], "tool_choice.function.name");
}

// The encoder of letters knows roles and contents alone: what becomes of the rest, templates' tests tell.
TEST_F(OpenAiToolsTest, MessagesOfAConversationAreRead) {
  Say("x");
  const auto ask = [this](const std::string& messages) {
    return Ask("POST", "/v1/chat/completions",
               absl::StrCat(R"({"model": "letters", "messages": )", messages, "}"));
  };
  EXPECT_EQ(ask(R"([{"role": "user", "content": "a"},
                    {"role": "assistant", "content": null, "reasoning_content": "r", "refusal": null,
                     "tool_calls": [{"id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}])")
                .status,
            200);
  const std::pair<std::string, std::string> kWrong[] = {
      {R"([{"role": "user"}])", "messages[0].content: missing"},
      {R"([{"role": "user", "content": null}])", "messages[0].content: missing"},
      {R"([{"role": "assistant", "tool_calls": [{"id": "i"}]}])",
       "messages[0].tool_calls[0].function: missing"},
      {R"([{"role": "assistant", "tool_calls": {}}])", "messages[0].tool_calls: expected a list"},
      {R"([{"role": "assistant", "content": "", "function_call": {"name": "f"}}])",
       "messages[0].function_call: "},
      {R"([{"role": "user", "content": "a", "tool_call_id": 3}])", "messages[0].tool_call_id: found 3"},
  };
  for (const auto& [messages, problem] : kWrong) {
    const Answer answer = ask(messages);
    EXPECT_EQ(answer.status, 400) << messages;
    EXPECT_THAT(answer.error(), HasSubstr(problem));
  }
}

TEST_F(OpenAiToolsTest, AResponseIsAListOfItems) {
  Say(kCalling);
  const Answer answer = Respond(
      R"("input": "hi", "instructions": "be", "metadata": {"k": "v"},
         "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}])");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json();
  EXPECT_EQ(json["object"], "response");
  EXPECT_THAT(json["id"].get<std::string>(), StartsWith("resp_"));
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["instructions"], "be");
  EXPECT_EQ(json["metadata"]["k"], "v");
  EXPECT_EQ(json["tools"][0]["name"], "f");
  ASSERT_EQ(json["output"].size(), 4u);
  EXPECT_EQ(json["output"][0]["type"], "reasoning");
  EXPECT_EQ(json["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(json["output"][1]["content"][0]["text"], "Ok");
  EXPECT_EQ(json["output"][2]["type"], "function_call");
  EXPECT_EQ(json["output"][2]["arguments"], R"({"a": 1})");
  EXPECT_EQ(json["usage"]["input_tokens"].get<int>() + json["usage"]["output_tokens"].get<int>(),
            json["usage"]["total_tokens"].get<int>());
  // begin, system, "be", user, "hi", where the answer begins.
  EXPECT_EQ(json["usage"]["input_tokens"], 8);
}

TEST_F(OpenAiToolsTest, AStreamOfAResponseAddsUpToIt) {
  Say(kCalling);
  const Answer answer =
      Respond(R"("input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
      "stream": true, "tools": [{"type": "function", "name": "f"}])");
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::vector<Json> events;
  for (const std::string& event : answer.events()) events.push_back(Json::parse(event));
  ASSERT_GT(events.size(), 10u);
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  std::vector<std::string> texts;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    EXPECT_THAT(answer.body, HasSubstr("event: " + events[i]["type"].get<std::string>() + "\n"));
    if (events[i]["type"] == "response.output_item.added") texts.emplace_back();
    if (events[i].contains("delta")) texts.at(events[i]["output_index"]) += events[i]["delta"];
  }
  EXPECT_THAT(texts, ::testing::ElementsAre("hm", "Ok", R"({"a": 1})", "{}"));
  const Json& output = events.back()["response"]["output"];
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(output[2]["arguments"], texts[2]);
}

TEST_F(OpenAiToolsTest, AResponseEndsWhereItIsAskedTo) {
  Say("x");
  const Answer answer = Respond(
      R"("input": "hi", "min_tokens": 2, "max_output_tokens": 7, "stop": ["END", "FIN"], "stop_token_ids": [66],
         "ignore_eos": true, "prompt_cache_options": {"mode": "explicit"})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const v1::StopConditions stopping = Asked().stopping();
  EXPECT_EQ(stopping.min_tokens(), 2u);
  EXPECT_EQ(stopping.max_tokens(), 7u);
  EXPECT_THAT(stopping.stop(), ::testing::ElementsAre("END", "FIN"));
  EXPECT_THAT(stopping.stop_token_ids(), ::testing::ElementsAre(66));
  EXPECT_TRUE(stopping.ignore_eos());
}

TEST_F(OpenAiToolsTest, ResponsesKeepNothing) {
  Say("x");
  const std::pair<std::string, std::string> kRefused[] = {
      {R"("model": "letters")", "input: missing"},
      {R"("input": 3)", "input: expected a string or a list"},
      {R"("input": "x", "previous_response_id": "resp_1")", "previous_response_id: "},
      {R"("input": "x", "background": true)", "background: "},
      {R"("input": "x", "max_tokens": 3)", "max_tokens: expected max_output_tokens"},
      {R"("input": "x", "response_format": {"type": "json_object"})",
       "response_format: expected text.format"},
      {R"("input": "x", "reasoning": {"effort": "some"})", "reasoning.effort: found \"some\""},
      {R"("input": [{"role": "pirate", "content": "x"}])", "input: no role pirate"},
      {R"("input": "x", "tools": [{"name": "f"}])", "tools[0].type: missing"},
      {R"("input": [{"type": "dream", "id": "x"}])", "input[0].type: found \"dream\""},
      {R"("input": [{"type": "function_call", "call_id": "x"}])", "input[0].name: missing"},
      {R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])",
       "input[0].content[0].type: found"},
      {R"("input": "x", "text": {"format": {"type": "xml"}})", "text.format.type: found \"xml\""},
      {R"("input": "x", "temperature": 1000)", "temperature: 1000"},
      {R"("input": "x", "min_tokens": -1)", "min_tokens: found -1"},
      {R"("input": "x", "min_tokens": 9, "max_output_tokens": 8)", "min_tokens: 9"},
      {R"("input": "x", "stop": [1])", "stop[0]: found 1, expected a string"},
      {R"("input": "x", "include_stop_str_in_output": "yes")", "include_stop_str_in_output: "},
      {R"("input": "x", "chat_template_kwargs": [])", "chat_template_kwargs: expected an object"},
      {R"("input": "x", "moderation": {"model": "m"})", "moderation: not supported"},
  };
  for (const auto& [fields, problem] : kRefused) {
    const Answer answer = Ask("POST", "/v1/responses", absl::StrCat("{", fields, "}"));
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_THAT(answer.error(), HasSubstr(problem)) << fields;
  }
  EXPECT_EQ(Respond(R"("input": "x", "store": true, "text": {"format": {"type": "json_schema", "name": "n",
                       "schema": {"type": "object"}, "strict": true}})")
                .status,
            200);
  EXPECT_EQ(Asked().constraint().json_schema().schema(), R"({"type":"object"})");
}

}  // namespace
}  // namespace tandem::router
