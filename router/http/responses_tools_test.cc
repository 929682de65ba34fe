// What agents send to /v1/responses besides functions: tools that take a text, namespaces, tools that a
// provider would run, and items of all of them.
#include "router/http/responses_tools.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/http/openai_json.h"
#include "router/http/responses_request.h"
#include "router/http/testing/openai_api_fixture.h"
#include "router/testing/stub_verifier.h"

namespace tandem::router {
namespace {

using testing::Answer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Saying;
using testing::StubVerifier;

// As Codex offers them.
constexpr char kAgentTools[] = R"("tools": [
  {"type": "function", "name": "shell", "strict": false, "parameters": {"type": "object", "properties": {}}},
  {"type": "custom", "name": "apply_patch", "description": "Edits files.",
   "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\""}},
  {"type": "custom", "name": "note", "format": {"type": "text"}},
  {"type": "web_search", "external_web_access": true},
  {"type": "namespace", "name": "mcp__git__", "description": "Git.", "tools": [
    {"type": "function", "name": "log", "parameters": {"type": "object"}},
    {"type": "custom", "name": "commit", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}}]},
  {"type": "local_shell"}])";

class ResponsesToolsTest : public testing::OpenAiApiTest {
 protected:
  void Say(const std::string& text, size_t chunk_bytes = 5) {
    verifier_.SetScript([this, text, chunk_bytes](StubVerifier::Call& call) {
      asked_ = call.request();
      Saying(text, chunk_bytes)(call);
    });
  }
  Answer Respond(const std::string& fields) {
    return Ask("POST", "/v1/responses", absl::StrCat(R"({"model": "letters", "input": "hi", )", fields, "}"));
  }
};

v1::ChatPrompt AgentChatOf(const std::string& fields) {
  const absl::StatusOr<CompletionRequest> request =
      ReadResponse(absl::StrCat("{", fields, "}"), /*refuse_unknown=*/true);
  EXPECT_TRUE(request.ok()) << request.status() << fields;
  return request.ok() ? request->prompts[0].chat() : v1::ChatPrompt();
}

TEST_F(ResponsesToolsTest, CallsAreWhatTheClientKnows) {
  Say(R"([TOOL_CALLS]shell[ARGS]{"a": 1}[TOOL_CALLS]apply_patch[ARGS]{"input": "*** \"B\"\n\u00e9\\"})"
      R"([TOOL_CALLS]mcp__git__log[ARGS]{}[TOOL_CALLS]mcp__git__commit[ARGS]{ "input" : "fix"})");
  const Answer answer = Respond(kAgentTools);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("X-Tandem-Ignored: tools[3], tools[5]\r\n"));
  const Json output = answer.json()["output"];
  ASSERT_EQ(output.size(), 4u) << output;
  EXPECT_EQ(output[0]["type"], "function_call");
  EXPECT_EQ(output[0]["name"], "shell");
  EXPECT_FALSE(output[0].contains("namespace"));
  EXPECT_EQ(output[1]["type"], "custom_tool_call");
  EXPECT_EQ(output[1]["name"], "apply_patch");
  EXPECT_EQ(output[1]["input"], "*** \"B\"\né\\");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "log");
  EXPECT_EQ(output[2]["namespace"], "mcp__git__");
  EXPECT_EQ(output[2]["arguments"], "{}");
  EXPECT_EQ(output[3]["type"], "custom_tool_call");
  EXPECT_EQ(output[3]["namespace"], "mcp__git__");
  EXPECT_EQ(output[3]["input"], "fix");
}

TEST_F(ResponsesToolsTest, AStreamAddsUpHoweverItIsCut) {
  const std::string said =
      R"([TOOL_CALLS]apply_patch[ARGS]{"input": "a\n\ud83d\ude00\"b\\"}[TOOL_CALLS]note[ARGS]{"text": 1})";
  for (const size_t chunk_bytes : {size_t{1}, size_t{3}, size_t{7}, said.size()}) {
    Say(said, chunk_bytes);
    const Answer answer = Respond(absl::StrCat(kAgentTools, R"(, "stream": true)"));
    ASSERT_EQ(answer.status, 200) << answer.body;
    std::vector<std::string> texts;
    std::vector<std::string> done;
    for (const std::string& text : answer.events()) {
      const Json event = Json::parse(text);
      const std::string type = event["type"];
      if (type == "response.output_item.added") {
        EXPECT_EQ(event["item"]["input"], "");
        texts.emplace_back();
      }
      if (type == "response.custom_tool_call_input.delta") texts.back() += event["delta"];
      if (type == "response.custom_tool_call_input.done") done.push_back(event["input"]);
      EXPECT_NE(type, "response.content_part.added");
    }
    // Arguments of another form, which a tool without a grammar may get, are the text.
    EXPECT_THAT(done, ElementsAre("a\n\xf0\x9f\x98\x80\"b\\", R"({"text": 1})")) << chunk_bytes;
    EXPECT_EQ(texts, done) << chunk_bytes;
  }
}

TEST_F(ResponsesToolsTest, GrammarsHoldTheInput) {
  Say("x");
  ASSERT_EQ(Respond(kAgentTools).status, 200);
  const v1::StructuralTags tags = Asked().constraint().structural_tags();
  EXPECT_FALSE(tags.at_least_one());
  ASSERT_EQ(tags.tags_size(), 5);
  EXPECT_EQ(tags.tags(0).content().json_schema().schema(),
            R"({"type":"object","additionalProperties":true})");
  EXPECT_EQ(tags.tags(1).begin(), R"([TOOL_CALLS][{"name": "apply_patch", "arguments": {"input": )");
  EXPECT_EQ(tags.tags(1).content().json_string().lark(), "start: \"*** Begin Patch\"");
  EXPECT_EQ(tags.tags(1).end(), "}}]");
  EXPECT_TRUE(tags.tags(2).content().has_json_schema());
  EXPECT_EQ(tags.tags(4).content().json_string().regex(), "[a-z]+");
  const v1::ChatPrompt chat = AgentChatOf(absl::StrCat(R"("input": "x", )", kAgentTools));
  EXPECT_EQ(chat.tools(1).description(),
            "Edits files.\n\nThe input follows this Lark grammar:\nstart: \"*** Begin Patch\"");
  EXPECT_THAT(chat.tools(1).parameters(), HasSubstr(R"("input":{"type":"string"})"));
}

TEST_F(ResponsesToolsTest, ChoicesNameThemToo) {
  const auto choice_of = [](const std::string& choice) {
    const v1::ChatPrompt chat =
        AgentChatOf(absl::StrCat(R"("input": "x", )", kAgentTools, R"(, "tool_choice": )", choice));
    return absl::StrCat(chat.tool_choice().ShortDebugString(), " ", chat.tools_size());
  };
  EXPECT_EQ(choice_of(R"({"type": "custom", "name": "note"})"), "name: \"note\" 5");
  EXPECT_EQ(choice_of(R"({"type": "function", "name": "log", "namespace": "mcp__git__"})"),
            "name: \"mcp__git__log\" 5");
  EXPECT_EQ(choice_of(R"({"type": "function", "name": "shell"})"), "name: \"shell\" 5");
  EXPECT_EQ(choice_of(R"("required")"), "mode: MODE_REQUIRED 5");
  EXPECT_EQ(choice_of(R"({"type": "allowed_tools", "mode": "required", "tools": [
                          {"type": "function", "name": "shell"}, {"type": "custom", "name": "note"}]})"),
            "mode: MODE_REQUIRED 2");
}

TEST_F(ResponsesToolsTest, ItemsOfAnAgentAreRead) {
  const v1::ChatPrompt chat = AgentChatOf(R"("input": [
    {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x", "content": null},
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": "*** \"x\"\n",
     "status": "completed"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
    {"type": "function_call", "call_id": "c2", "name": "log", "namespace": "mcp__git__", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "none"}]},
    {"type": "local_shell_call", "call_id": "c3", "status": "completed",
     "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call_output", "id": "c3", "output": "files"},
    {"type": "item_reference", "id": "msg_1"}])");
  std::vector<std::string> told;
  for (const v1::ChatMessage& message : chat.messages()) {
    std::string text =
        absl::StrCat(message.role(), ":", message.content(), absl::StrJoin(message.content_parts(), ""));
    for (const v1::ToolCall& call : message.tool_calls())
      absl::StrAppend(&text, call.id(), " ", call.name(), call.arguments());
    absl::StrAppend(&text, message.tool_call_id().empty() ? "" : "<" + message.tool_call_id());
    told.push_back(text);
  }
  EXPECT_THAT(told,
              ElementsAre("user:a", R"(assistant:c1 apply_patch{"input":"*** \"x\"\n"})", "tool:Done<c1",
                          "assistant:c2 mcp__git__log{}", "tool:none<c2",
                          R"(assistant:c3 local_shell{"command":["ls"],"type":"exec"})", "tool:files<c3"));
}

TEST_F(ResponsesToolsTest, WhatNobodyCanReadIsNamed) {
  Say("x");
  const Answer answer = Ask("POST", "/v1/responses", R"({"model": "letters", "input": [
    {"role": "user", "content": "a"}, {"type": "item_reference", "id": "rs_gone"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}}]})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("X-Tandem-Ignored: input[1], input[2], input[3]\r\n"));
  EXPECT_THAT(Respond(R"("stream": false)").head, Not(HasSubstr("X-Tandem-Ignored")));
}

TEST_F(ResponsesToolsTest, WhatWouldBeLeftOutMayBeRefused) {
  Start({.refuse_left_out = true});
  const Answer answer = Respond(kAgentTools);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.error(), HasSubstr("tools[3]: not supported"));
  EXPECT_EQ(answer.json()["error"]["param"], "tools[3]");
  EXPECT_EQ(answer.json()["error"]["code"], "unsupported_parameter");
  EXPECT_EQ(Respond(R"("stream": false)").status, 200);
}

TEST_F(ResponsesToolsTest, ATenantThatRefusesUnknownFieldsRefusesThemToo) {
  v1::RouterConfig config = testing::LettersConfig({verifier_.endpoint()});
  for (v1::TenantConfig& tenant : *config.mutable_tenants())
    tenant.set_unknown_fields(v1::UNKNOWN_FIELDS_REFUSE);
  StartWith(config);
  EXPECT_EQ(Respond(kAgentTools).json()["error"]["param"], "tools[3]");
  const Answer answer = Ask("POST", "/v1/responses", R"({"input": [{"role": "user", "content": "a"},
                                                     {"type": "item_reference", "id": "rs_gone"}]})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "input[1]");
  EXPECT_EQ(Respond(R"("tools": [{"type": "custom", "name": "f", "depth": 1}])").json()["error"]["code"],
            "unknown_parameter");
}

TEST_F(ResponsesToolsTest, ErrorsNameToolsAsTheClientListsThem) {
  const std::pair<std::string, std::string> kWrong[] = {
      {R"("tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}])", "tools[1].name"},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "a"},
                    {"type": "function", "name": "f", "parameters": {"type": "string"}}]}])",
       "tools[0].tools[1].parameters.type"},
      {R"("tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g", "parameters": {"type": "string"}}],
          "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]})",
       "tools[1].parameters.type"},
  };
  for (const auto& [fields, param] : kWrong) {
    const Answer answer = Respond(fields);
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_EQ(answer.json()["error"]["param"], param) << answer.body;
  }
}

TEST_F(ResponsesToolsTest, UnknownMembersOfToolsAreIgnoredByName) {
  Say("x");
  const Answer answer = Respond(
      R"("tools": [{"type": "function", "name": "f", "a": 1}, {"type": "custom", "name": "g", "format": {"type": "text", "b": 1}},
                   {"type": "namespace", "name": "n", "description": "d", "c": 1, "tools": []}])");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("X-Tandem-Ignored: tools[0].a, tools[1].format.b, tools[2].c\r\n"));
}

TEST_F(ResponsesToolsTest, WrongToolsAreNamed) {
  const std::pair<std::string, std::string> kWrong[] = {
      {R"("tools": [{"type": "custom"}])", "tools[0].name: missing"},
      {R"("tools": [{"type": "custom", "name": "f", "format": {"type": "xml"}}])",
       "tools[0].format.type: found \"xml\""},
      {R"("tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "bnf", "definition": "x"}}])",
       "tools[0].format.syntax: found \"bnf\""},
      {R"("tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark"}}])",
       "tools[0].format.definition: missing"},
      {R"("tools": [{"type": "namespace", "name": "n"}])", "tools[0].tools: missing"},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}])",
       "tools[0].tools[0].name: missing"},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}])",
       "within a namespace"},
      {R"("tools": [3])", "tools[0]: expected an object"},
      {R"("tools": {}, "tool_choice": "auto")", "tools: expected a list"},
      {R"("tool_choice": {"type": "allowed_tools", "mode": "some", "tools": []})", "tool_choice.mode: "},
      {R"("tool_choice": {"type": "custom"})", "tool_choice.name: missing"},
  };
  for (const auto& [fields, problem] : kWrong) {
    const Answer answer = Respond(fields);
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_THAT(answer.error(), HasSubstr(problem)) << fields;
  }
}

TEST(CustomInputTest, ReadsWhatIsCertain) {
  const auto pieces = [](const std::vector<std::string>& arguments) {
    CustomInput input;
    std::vector<std::string> out;
    for (const std::string& piece : arguments) out.push_back(input.Push(piece));
    out.push_back(input.Finish());
    return out;
  };
  EXPECT_THAT(pieces({"{\"inp", "ut\": \"a", "\\", "nb\\u00", "e9", "\"}"}),
              ElementsAre("", "a", "", "\nb", "é", "", ""));
  EXPECT_THAT(pieces({"{\"input\": \"\\ud83d", "\\ude00", "x\"", "}"}),
              ElementsAre("", "\xf0\x9f\x98\x80", "x", "", ""));
  EXPECT_THAT(pieces({"{\"input\": \"cut"}), ElementsAre("cut", ""));
  EXPECT_THAT(pieces({"{\"other\": ", "1}"}), ElementsAre("", "", "{\"other\": 1}"));
  EXPECT_THAT(pieces({""}), ElementsAre("", ""));
  EXPECT_EQ(ArgumentsOfInput("a\"\n"), R"({"input":"a\"\n"})");
}

}  // namespace
}  // namespace tandem::router
