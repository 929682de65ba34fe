#include "router/models/parsed_output.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/letter_encoder.h"

namespace tandem::router {
namespace {

constexpr char kSaid[] = "<think>\nhm\n</think>\nOk. [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}";

v1::GenerateRequest AskWithTools() {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("do");
  request.mutable_chat()->add_tools()->set_name("f");
  return request;
}

v1::VerifierGenerateRequest PreparedOf(uint64_t seed, const std::string& emitted = "") {
  v1::VerifierGenerateRequest prepared;
  for (const int token : {1, 2, int{'d'}, int{'o'}, 3})
    prepared.mutable_prompt()->add_ids(static_cast<uint32_t>(token));
  prepared.mutable_sampling()->set_seed(seed);
  for (const char c : emitted) prepared.mutable_emitted()->add_ids(static_cast<unsigned char>(c));
  return prepared;
}

struct Gathered {
  std::string content;
  std::string reasoning;
  std::string calls;
  std::vector<std::string> ids;

  void Add(const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas) {
    for (const v1::OutputDelta& delta : deltas) {
      content += delta.content();
      reasoning += delta.reasoning();
      if (!delta.has_tool_call()) continue;
      const v1::ToolCallDelta& call = delta.tool_call();
      if (!call.name().empty()) {
        absl::StrAppend(&calls, "|", call.index(), call.name());
        ids.push_back(call.id());
      }
      calls += call.arguments();
    }
  }
};

// Sends the text in pieces, the last of them in `finished`.
Gathered Play(ParsedOutput& parsed, const std::string& text, size_t piece_bytes, size_t held_bytes = 2) {
  Gathered gathered;
  const size_t sent = text.size() - std::min(text.size(), held_bytes);
  for (size_t at = 0; at < sent; at += piece_bytes) {
    v1::GenerateResponse event;
    event.mutable_chunk()->set_text(text.substr(at, std::min(piece_bytes, sent - at)));
    parsed.OnEvent(event);
    gathered.Add(event.chunk().deltas());
  }
  v1::GenerateResponse event;
  event.mutable_finished()->set_text(text.substr(sent));
  parsed.OnEvent(event);
  gathered.Add(event.finished().deltas());
  return gathered;
}

TEST(ParsedOutputTest, IsForChatsThatAskForIt) {
  const ServedModel model = testing::LetterModel();
  v1::GenerateRequest request = AskWithTools();
  EXPECT_TRUE(ParsedOutput::Begin(request, PreparedOf(1), model).has_value());
  request.mutable_chat()->mutable_tool_choice()->set_mode(v1::ToolChoice::MODE_NONE);
  EXPECT_FALSE(ParsedOutput::Begin(request, PreparedOf(1), model).has_value());
  request.mutable_chat()->set_parse_output(true);
  EXPECT_TRUE(ParsedOutput::Begin(request, PreparedOf(1), model).has_value());
  request.set_text("do");
  EXPECT_FALSE(ParsedOutput::Begin(request, PreparedOf(1), model).has_value());
}

TEST(ParsedOutputTest, TellsWhatIsWhat) {
  const ServedModel model = testing::LetterModel();
  for (const size_t piece_bytes : {1, 3, 100}) {
    std::optional<ParsedOutput> parsed = ParsedOutput::Begin(AskWithTools(), PreparedOf(1), model);
    const Gathered gathered = Play(*parsed, kSaid, piece_bytes);
    EXPECT_EQ(gathered.reasoning, "hm");
    EXPECT_EQ(gathered.content, "Ok.");
    EXPECT_EQ(gathered.calls, R"(|0f{"a": 1}|1g{})");
    ASSERT_EQ(gathered.ids.size(), 2u);
    EXPECT_NE(gathered.ids[0], gathered.ids[1]);
    EXPECT_EQ(gathered.ids[0].size(), 9u);
  }
}

TEST(ParsedOutputTest, IdsFollowFromPromptAndSeed) {
  ServedModel model = testing::LetterModel();
  const auto ids = [&](const v1::VerifierGenerateRequest& prepared) {
    std::optional<ParsedOutput> parsed = ParsedOutput::Begin(AskWithTools(), prepared, model);
    return Play(*parsed, kSaid, 5).ids;
  };
  EXPECT_EQ(ids(PreparedOf(1)), ids(PreparedOf(1)));
  EXPECT_NE(ids(PreparedOf(1)), ids(PreparedOf(2)));
  v1::VerifierGenerateRequest other = PreparedOf(1);
  other.mutable_prompt()->add_ids(3);
  EXPECT_NE(ids(PreparedOf(1)), ids(other));
  model.output_format.calls = CallSyntax::kHermes;
  std::optional<ParsedOutput> parsed = ParsedOutput::Begin(AskWithTools(), PreparedOf(1), model);
  const Gathered gathered = Play(*parsed, R"(<tool_call>{"name": "f"}</tool_call>)", 5);
  ASSERT_EQ(gathered.ids.size(), 1u);
  EXPECT_THAT(gathered.ids[0], ::testing::MatchesRegex("call_[0-9A-Za-z]{24}"));
}

TEST(ParsedOutputTest, BeginsInReasoningThatThePromptOpened) {
  const ServedModel model = testing::LetterModel();
  v1::VerifierGenerateRequest prepared = PreparedOf(1);
  for (const char c : std::string("<think>\n")) prepared.mutable_prompt()->add_ids(static_cast<uint32_t>(c));
  std::optional<ParsedOutput> parsed = ParsedOutput::Begin(AskWithTools(), prepared, model);
  EXPECT_EQ(Play(*parsed, "so</think>yes", 4).reasoning, "so");
  v1::GenerateRequest continued = AskWithTools();
  continued.mutable_chat()->set_continue_final_message(true);
  v1::ChatMessage& last = *continued.mutable_chat()->add_messages();
  last.set_content("<think>I was");
  parsed = ParsedOutput::Begin(continued, PreparedOf(1), model);
  EXPECT_EQ(Play(*parsed, " there</think>yes", 4).reasoning, "there");
  last.set_content("<think>I was</think>");
  parsed = ParsedOutput::Begin(continued, PreparedOf(1), model);
  EXPECT_EQ(Play(*parsed, "yes", 4).content, "yes");
}

// Whatever of the output the client has, the rest comes as it would have.
TEST(ParsedOutputTest, GoesOnWhereAStreamBrokeOff) {
  const ServedModel model = testing::LetterModel();
  const std::string said = kSaid;
  for (size_t at = 1; at < said.size(); ++at) {
    std::optional<ParsedOutput> whole = ParsedOutput::Begin(AskWithTools(), PreparedOf(1), model);
    Gathered together;
    v1::GenerateResponse first;
    first.mutable_chunk()->set_text(said.substr(0, at));
    whole->OnEvent(first);
    together.Add(first.chunk().deltas());

    std::optional<ParsedOutput> resumed =
        ParsedOutput::Begin(AskWithTools(), PreparedOf(1, said.substr(0, at)), model);
    const bool over = at + 1 == said.size();
    const Gathered rest = Play(*resumed, said.substr(at), 3, over ? 0 : 1);
    together.content += rest.content;
    together.reasoning += rest.reasoning;
    together.calls += rest.calls;
    together.ids.insert(together.ids.end(), rest.ids.begin(), rest.ids.end());
    std::optional<ParsedOutput> again = ParsedOutput::Begin(AskWithTools(), PreparedOf(1), model);
    const Gathered expected = Play(*again, said, 3);
    EXPECT_EQ(together.content, expected.content) << at;
    EXPECT_EQ(together.reasoning, expected.reasoning) << at;
    EXPECT_EQ(together.calls, expected.calls) << at;
    EXPECT_EQ(together.ids, expected.ids) << at;
  }
}

// The client has all tokens, but not the end: its text comes with `finished`.
TEST(ParsedOutputTest, GoesOnBehindTheLastToken) {
  const ServedModel model = testing::LetterModel();
  const std::string said = "[TOOL_CALLS]f[ARGS]{\"a\": 1}";
  std::optional<ParsedOutput> resumed = ParsedOutput::Begin(AskWithTools(), PreparedOf(1, said), model);
  v1::GenerateResponse last;
  last.mutable_finished()->set_text("}");
  resumed->OnEvent(last);
  ASSERT_EQ(last.finished().deltas_size(), 1);
  EXPECT_EQ(last.finished().deltas(0).tool_call().arguments(), "}");
}

}  // namespace
}  // namespace tandem::router
