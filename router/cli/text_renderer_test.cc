#include "router/cli/text_renderer.h"

#include <sstream>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

constexpr v1::TokenSource kTarget = v1::TOKEN_SOURCE_TARGET;
constexpr v1::TokenSource kAccepted = v1::TOKEN_SOURCE_ACCEPTED;

v1::GenerateResponse Chunk(const std::string& text,
                           const std::vector<std::pair<v1::TokenSource, uint32_t>>& details) {
  v1::GenerateResponse event;
  event.mutable_chunk()->set_text(text);
  for (const auto& [source, bytes] : details) {
    v1::TokenDetail* detail = event.mutable_chunk()->add_details();
    detail->set_source(source);
    detail->set_text_bytes(bytes);
  }
  return event;
}

std::string Render(const TextRenderer::Options& options, const std::vector<v1::GenerateResponse>& events) {
  std::ostringstream out;
  TextRenderer renderer(out, options);
  for (const v1::GenerateResponse& event : events) renderer.Write(event);
  renderer.EndLine();
  return out.str();
}

TEST(TextRendererTest, ColorsAcceptedTokensInRuns) {
  EXPECT_EQ(Render({.color = true}, {Chunk("one two three", {{kAccepted, 3}, {kAccepted, 4}, {kTarget, 6}})}),
            "\033[32mone two\033[0m three\n");
  EXPECT_EQ(Render({.color = true}, {Chunk("ab", {{kTarget, 1}, {kAccepted, 1}})}), "a\033[32mb\033[0m\n");
}

TEST(TextRendererTest, WhatTheVerifierGuessedHasAColorOfItsOwn) {
  v1::GenerateResponse event = Chunk("abcd", {{kAccepted, 1}, {kAccepted, 1}, {kAccepted, 1}, {kTarget, 1}});
  event.mutable_chunk()->mutable_details(0)->set_draft_source(v1::DRAFT_SOURCE_DRAFTER);
  event.mutable_chunk()->mutable_details(1)->set_draft_source(v1::DRAFT_SOURCE_LOCAL);
  event.mutable_chunk()->mutable_details(2)->set_draft_source(v1::DRAFT_SOURCE_LOCAL);
  EXPECT_EQ(Render({.color = true}, {event}), "\033[32ma\033[0m\033[36mbc\033[0md\n");
}

TEST(TextRendererTest, WithoutColorTextIsUntouched) {
  EXPECT_EQ(Render({}, {Chunk("one \033two", {{kAccepted, 8}})}), "one \033two\n");
}

TEST(TextRendererTest, WrongByteCountsLoseNoText) {
  EXPECT_EQ(Render({.color = true}, {Chunk("abc", {})}), "abc\n");
  EXPECT_EQ(Render({.color = true}, {Chunk("abc", {{kAccepted, 1}})}), "\033[32ma\033[0mbc\n");
  EXPECT_EQ(Render({.color = true}, {Chunk("abc", {{kAccepted, 4000000000}, {kTarget, 4000000000}})}),
            "\033[32mabc\033[0m\n");
  // Never in the middle of a character.
  EXPECT_EQ(Render({.color = true}, {Chunk("\xC3\xA4x", {{kAccepted, 1}, {kTarget, 2}})}),
            "\033[32m\xC3\xA4\033[0mx\n");
}

TEST(TextRendererTest, TerminalsAreNotAtTheModelsCommand) {
  EXPECT_EQ(Render({.replace_controls = true}, {Chunk("a\033[2J\tb\nc\x7F\r\xC2\x9Bz\xC3\xA4", {})}),
            "a\xEF\xBF\xBD[2J\tb\nc\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz\xC3\xA4\n");
}

TEST(TextRendererTest, CallsStandOnLinesOfTheirOwn) {
  v1::GenerateResponse event;
  v1::GenerationChunk& chunk = *event.mutable_chunk();
  chunk.set_text("not shown");
  chunk.add_deltas()->set_reasoning("hm ");
  chunk.add_deltas()->set_content("Ok.");
  for (const char* name : {"f", "", "g"}) {
    v1::ToolCallDelta& call = *chunk.add_deltas()->mutable_tool_call();
    call.set_name(name);
    call.set_arguments("{}");
  }
  chunk.add_deltas()->set_content("Done");
  EXPECT_EQ(Render({.parsed = true}, {event}), "hm Ok.\nf {}{}\ng {}\nDone\n");
}

TEST(TextRendererTest, HeldBackTextAndTheLastLine) {
  v1::GenerateResponse finished;
  finished.mutable_finished()->set_text("end\n");
  EXPECT_EQ(Render({}, {Chunk("a ", {}), finished}), "a end\n") << "no second line feed";
  EXPECT_EQ(Render({}, {}), "");
}

}  // namespace
}  // namespace tandem::cli
