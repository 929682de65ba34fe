#include "common/chat/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using testing::ElementsAre;
using Kind = OutputDelta::Kind;

OutputParser ParserOf(absl::string_view format, bool in_reasoning = false) {
  return OutputParser(
      {.format = *OutputFormatOf(format), .tools = {"f", "get_x"}, .in_reasoning = in_reasoning});
}

// Pieces of one kind that follow one another become one.
void Append(std::vector<OutputDelta> pieces, std::vector<OutputDelta>& all) {
  for (OutputDelta& piece : pieces) {
    if (!all.empty() && all.back().kind == piece.kind && all.back().call == piece.call &&
        piece.name.empty()) {
      all.back().text += piece.text;
    } else {
      all.push_back(std::move(piece));
    }
  }
}

std::string Shown(const std::vector<OutputDelta>& deltas) {
  std::string shown;
  for (const OutputDelta& delta : deltas) {
    const bool is_call = delta.kind == Kind::kCall;
    absl::StrAppend(&shown, shown.empty() ? "" : " ",
                    is_call ? absl::StrCat(delta.name, "#", delta.call)
                            : (delta.kind == Kind::kContent ? "says" : "thinks"),
                    "(", delta.text, ")");
  }
  return shown;
}

// What the text is, taken at once, and taken byte by byte.
std::string Parsed(absl::string_view format, absl::string_view text, bool in_reasoning = false) {
  OutputParser whole = ParserOf(format, in_reasoning);
  std::vector<OutputDelta> at_once;
  Append(whole.Push(text), at_once);
  Append(whole.Finish(), at_once);
  OutputParser bytes = ParserOf(format, in_reasoning);
  std::vector<OutputDelta> bytewise;
  for (const char byte : text) Append(bytes.Push(absl::string_view(&byte, 1)), bytewise);
  Append(bytes.Finish(), bytewise);
  EXPECT_EQ(Shown(at_once), Shown(bytewise)) << text;
  return Shown(at_once);
}

TEST(OutputParserTest, ReadsHermesCalls) {
  EXPECT_EQ(Parsed("hermes", "Hello.\n"), "says(Hello.\n)");
  EXPECT_EQ(Parsed("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {}]}}\n</tool_call>"),
            R"(f#0({"a": [1, {}]}))");
  EXPECT_EQ(
      Parsed("hermes",
             "Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
             "<tool_call>{\"arguments\":{\"b\":\"</tool_call>\"},\"name\":\"other\"}</tool_call>\n done"),
      R"(says(Let me see.) f#0({}) other#1({"b":"</tool_call>"}) says(done))");
  EXPECT_EQ(Parsed("hermes", R"(<tool_call>{"name": "f"}</tool_call>)"), "f#0({})");
  EXPECT_EQ(Parsed("hermes", R"(<tool_call>{"name": "fé", "parameters": null})"), "fé#0(null)");
}

TEST(OutputParserTest, KeepsWhatIsNoCall) {
  for (const char* text :
       {"<tool_call>", "<tool_call> {", "<tool_call>{}</tool_call>", "<tool_call>[1]</tool_call>",
        "<tool_cal", "a<", "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>", "<tool_call>f(x)</tool_call>",
        "\n<tool_call>{\"arguments\": {}}</tool_call>\n", "</tool_call>",
        "<tool_call>{\"name\" \"f\"}</tool_call>", " \n ", "<tool_call><tool_call", "<think>x</think>",
        "<tool_call>{\"name\": \"\\ud800\"}"}) {
    EXPECT_EQ(Parsed("hermes", text), absl::StrCat("says(", text, ")"));
  }
  EXPECT_EQ(Parsed("hermes", R"(<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>)"),
            "says(<tool_call>) f#0({})");
  EXPECT_EQ(Parsed("hermes", R"(<tool_call>{"name": "f", "arguments": {}} extra)"), "f#0({}) says(extra)");
}

TEST(OutputParserTest, LeavesBrokenArgumentsToTheCall) {
  EXPECT_EQ(Parsed("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call> so)"),
            R"(f#0({"a": oops}}) says(so))");
  EXPECT_EQ(Parsed("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": "cut)"), R"(f#0({"a": "cut))");
  EXPECT_EQ(Parsed("mistral", R"([TOOL_CALLS]f[ARGS]{a}[TOOL_CALLS]f[ARGS]{"b": 1})"),
            R"(f#0({a}) f#1({"b": 1}))");
}

TEST(OutputParserTest, ReadsReasoning) {
  EXPECT_EQ(Parsed("hermes+think", "<think>\nhm\n</think>\n\nYes."), "thinks(hm) says(Yes.)");
  EXPECT_EQ(Parsed("hermes+think",
                   "\nhm\n\nso\n</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", true),
            "thinks(hm\n\nso) f#0({})");
  EXPECT_EQ(Parsed("hermes+think", "<think>\n\n</think>\n\nYes <think>"), "says(Yes <think>)");
  EXPECT_EQ(Parsed("hermes+think", "<think>cut </thi"), "thinks(cut </thi)");
  EXPECT_EQ(Parsed("none+think", "a <think>b</think>"), "says(a <think>b</think>)");
  EXPECT_EQ(Parsed("json+think", "<think>a</think>{\"name\": \"f\", \"arguments\": {}}"),
            "thinks(a) f#0({})");
}

TEST(OutputParserTest, ReadsLlamaCalls) {
  EXPECT_EQ(Parsed("llama", R"({"name": "f", "parameters": {"a": 1}})"), R"(f#0({"a": 1}))");
  EXPECT_EQ(
      Parsed(
          "llama",
          R"(<|python_tag|>{"type": "function", "name": "brave", "parameters": {}}; {"name": "f", "parameters": {}})"),
      "brave#0({}) f#1({})");
  EXPECT_EQ(
      Parsed("llama", "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"get_x\", \"parameters\": {}}"),
      "f#0({}) get_x#1({})");
  for (const char* text : {R"({"name": "unknown", "parameters": {}})", R"({"answer": {"name": "f"}})", "{",
                           "Say {\"name\": \"f\"}", "<|python_tag|>print(1)", R"({"name": "Anna")"}) {
    EXPECT_EQ(Parsed("llama", text), absl::StrCat("says(", text, ")"));
  }
}

TEST(OutputParserTest, DoesNotHoldBackAnswersInJson) {
  OutputParser parser = ParserOf("json");
  EXPECT_TRUE(parser.Push(R"({"answer")").empty());
  EXPECT_EQ(Shown(parser.Push(":")), R"(says({"answer":))");
}

TEST(OutputParserTest, ReadsLists) {
  EXPECT_EQ(Parsed("json", R"( [{"name": "f", "arguments": {}}, {"name": "get_x", "arguments": {"a": 1}}] )"),
            R"(f#0({}) get_x#1({"a": 1}))");
  EXPECT_EQ(Parsed("json", R"([1, 2])"), "says([1, 2])");
  EXPECT_EQ(Parsed("json", R"([{"name": "f", "arguments": {}}, 3])"), "f#0({}) says(, 3])");
}

TEST(OutputParserTest, ReadsMistralCalls) {
  EXPECT_EQ(
      Parsed(
          "mistral",
          R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}])"),
      R"(f#0({"a": 1}) g#1({}))");
  EXPECT_EQ(
      Parsed("mistral", R"(So: [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}[TOOL_CALLS]h{})"),
      R"(says(So:) f#0({"a": 1}) g#1({}) h#2({}))");
  for (const char* text : {"[TOOL_CALLS]f x", "[TOOL_CALLS]", "[TOOL_CALLS]f[ARG",
                           "[TOOL_CALLS]f[CALL_ID][ARGS]x", "[TOOL_CAL", "[TOOL_CALLS] [1]"}) {
    EXPECT_EQ(Parsed("mistral", text), absl::StrCat("says(", text, ")"));
  }
}

TEST(OutputParserTest, ReadsDeepSeekCalls) {
  EXPECT_EQ(
      Parsed(
          "deepseek-fenced+think",
          "ok</think>\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
          "1}\n```"
          "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<"
          "｜tool▁call▁end｜>"
          "<｜tool▁calls▁end｜>",
          true),
      R"(thinks(ok) f#0({"a": 1}) g#1({}))");
  EXPECT_EQ(
      Parsed("deepseek",
             "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
             "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{\"b\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      R"(f#0({}) function#1({"b": 2}))");
  for (const char* text :
       {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜>x", "<｜tool▁call▁begin｜>f{}",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>x", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```py\n{}",
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"}) {
    EXPECT_EQ(Parsed("deepseek", text), absl::StrCat("says(", text, ")"));
  }
}

TEST(OutputParserTest, LooksForNothingWithoutTools) {
  OutputParser parser({.format = *OutputFormatOf("hermes+think"), .tools = {}});
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  EXPECT_EQ(Shown(parser.Push(absl::StrCat("<think>a</think>", call))),
            absl::StrCat("thinks(a) says(", call, ")"));
}

TEST(OutputParserTest, HoldsNothingBackWhereThereIsNothingToLookFor) {
  OutputParser parser({.format = *OutputFormatOf("hermes"), .tools = {}});
  EXPECT_EQ(Shown(parser.Push(" <tool_cal")), "says( <tool_cal)");
  EXPECT_EQ(Shown(parser.Push("l> \n")), "says(l> \n)");
  EXPECT_TRUE(parser.Finish().empty());
}

// What the frames of forced calls make, is read.
TEST(OutputParserTest, ReadsWhatFramesMake) {
  for (const char* name : {"hermes", "llama", "mistral", "deepseek", "deepseek-fenced", "json"}) {
    const CallFrame frame = FrameOfCall(*OutputFormatOf(name), "get_x");
    EXPECT_TRUE(absl::StartsWith(frame.begin, frame.trigger)) << name;
    EXPECT_EQ(Parsed(name, absl::StrCat(frame.begin, R"({"a": "b"})", frame.end)), R"(get_x#0({"a": "b"}))")
        << name;
  }
}

std::string RandomOutput(std::mt19937& random) {
  static const char* const kParts[] = {
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
      "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]",
      "[TOOL_CALLS]f[ARGS]{\"a\": [2]}",
      "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
      "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
      "<think>",
      "</think>",
      "<tool_call>",
      "</tool_call>",
      "[TOOL_CALLS]",
      "[ARGS]",
      "[CALL_ID]",
      "<|python_tag|>",
      "<｜tool▁calls▁begin｜>",
      "<｜tool▁call▁begin｜>",
      "<｜tool▁sep｜>",
      "<｜tool▁call▁end｜>",
      "<｜tool▁calls▁end｜>",
      "```json\n",
      "```",
      R"({"name": "f", "arguments": {"a": 1}})",
      R"({"name": "get_x", "parameters": {}})",
      R"({"arguments": {}, "name": "f"})",
      "{",
      "}",
      "[",
      "]",
      ",",
      ";",
      "\n",
      "  ",
      "function",
      "f",
      "get_x",
      "words and words",
      "\"",
      "é",
      R"({"a": "b"})",
      "{}",
      "世"};
  std::string text;
  for (size_t parts = random() % 14; parts > 0; --parts) {
    absl::string_view part = kParts[random() % std::size(kParts)];
    // Whole characters, as texts of outputs are.
    if (random() % 8 == 0 && part.size() > 1 && static_cast<unsigned char>(part[1]) < 0x80)
      part = part.substr(0, 1);
    absl::StrAppend(&text, part);
  }
  return text;
}

// However the text is cut, its pieces add up to the same; and what is certain after a part of it does not
// depend on how that came.
TEST(OutputParserTest, DoesNotDependOnCuts) {
  std::mt19937 random(11);
  const char* const kFormats[] = {"hermes",   "hermes+think",          "llama", "mistral+think",
                                  "deepseek", "deepseek-fenced+think", "json",  "none+think"};
  int num_calls = 0;
  for (int round = 0; round < 8'000; ++round) {
    const char* const format = kFormats[round % 8];
    const bool in_reasoning = random() % 4 == 0;
    const std::string text = RandomOutput(random);
    const std::string whole = Parsed(format, text, in_reasoning);
    OutputParser parser = ParserOf(format, in_reasoning);
    std::vector<OutputDelta> all;
    for (size_t at = 0; at < text.size();) {
      size_t length = std::min(text.size() - at, 1 + random() % 20);
      // Between characters, so that every piece can be sent.
      while (at + length < text.size() && (static_cast<unsigned char>(text[at + length]) & 0xC0) == 0x80)
        ++length;
      const std::vector<OutputDelta> pieces = parser.Push(text.substr(at, length));
      for (const OutputDelta& piece : pieces) {
        EXPECT_NO_THROW(nlohmann::json(piece.text).dump()) << "not UTF-8: " << text;
        EXPECT_NO_THROW(nlohmann::json(piece.name).dump()) << "not UTF-8: " << text;
      }
      Append(pieces, all);
      at += length;
    }
    Append(parser.Finish(), all);
    EXPECT_EQ(Shown(all), whole) << format << ": " << text;
    num_calls += static_cast<int>(parser.num_calls());
    // Words are never lost.
    size_t words = 0;
    size_t shown = 0;
    for (size_t at = text.find("words"); at != std::string::npos; at = text.find("words", at + 1)) ++words;
    for (size_t at = whole.find("words"); at != std::string::npos; at = whole.find("words", at + 1)) ++shown;
    EXPECT_EQ(words, shown) << format << ": " << text;
  }
  EXPECT_GT(num_calls, 500);
}

TEST(OutputParserTest, HoldsBackNoMoreThanItMay) {
  OutputParser parser({.format = *OutputFormatOf("hermes"), .tools = {"f"}, .max_held_bytes = 1000});
  const std::string head = R"(<tool_call>{"arguments": {"a": ")";
  EXPECT_TRUE(parser.Push(head).empty());
  size_t held = head.size();
  std::string said;
  for (int i = 0; i < 100; ++i) {
    for (const OutputDelta& delta : parser.Push(std::string(100, 'x'))) {
      EXPECT_EQ(delta.kind, Kind::kContent);
      said += delta.text;
    }
    held += 100;
    EXPECT_LE(held - said.size(), 1100u);
  }
  // White space as well.
  OutputParser blanks = ParserOf("hermes+think", true);
  size_t thought = 0;
  for (const OutputDelta& delta : blanks.Push(std::string(10'000, '\n'))) thought += delta.text.size();
  EXPECT_GT(thought, 9'000u);
}

// About a megabyte of each: what takes more than linear work would not end.
TEST(OutputParserTest, TakesLinearWork) {
  const struct {
    const char* unit;
    const char* format;
  } kCases[] = {{"<tool_call>", "hermes"},
                {"<tool_call>{\"arguments\": {\"a\": \"", "hermes"},
                {"<tool_cal", "hermes"},
                {"[TOOL_CALLS]f", "mistral"},
                {"[TOOL_CALLS][{\"name\": \"f\"},", "mistral"},
                {"<｜tool▁call▁begin｜>", "deepseek"},
                {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call", "deepseek"},
                {"{\"name\": \"f\", \"parameters\": {}};", "llama"},
                {"<think>", "hermes+think"},
                {"\n", "hermes+think"}};
  for (const auto& test_case : kCases) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += test_case.unit;
    OutputParser parser = ParserOf(test_case.format);
    size_t bytes = 0;
    for (const OutputDelta& delta : parser.Push(text)) bytes += delta.text.size();
    for (const OutputDelta& delta : parser.Finish()) bytes += delta.text.size();
    EXPECT_LE(bytes, text.size()) << test_case.unit;
  }
}

}  // namespace
}  // namespace tandem
