#include "router/live/live_json.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/testing/client_call.h"
#include "router/testing/letter_encoder.h"

namespace tandem::router {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LetterModel;
using ::testing::Not;
using testing::Parse;

// Parses, and is one line: what server-sent events ask for.
json Read(const std::string& line) {
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_THAT(line, Not(HasSubstr("\r")));
  return json::parse(line);
}

json ReadRound(const v1::GenerationChunk& chunk) {
  return Read(RoundJson(7, 3, chunk, *LetterModel().encoder));
}

TEST(LiveJsonTest, ARoundTellsWhatItsConstraintForcesAndForbids) {
  const json round = ReadRound(Parse<v1::GenerationChunk>(R"pb(
    tokens: [ 97 ]
    text: "a"
    details { source: TOKEN_SOURCE_ACCEPTED text_bytes: 1 draft_source: DRAFT_SOURCE_GRAMMAR }
    shares { source: DRAFT_SOURCE_GRAMMAR draft_tokens: 1 accepted_tokens: 1 }
    round {
      tree { parent: 0 token: 97 score: 0.75 accepted: true source: DRAFT_SOURCE_GRAMMAR }
      masked_nodes: 3
      masked { parent: 1 token: 98 score: 0.5 }
      masked { parent: 2 token: 99 score: 0.5 }
    }
  )pb"));
  EXPECT_EQ(round["sources"], json::parse(R"({"nodes":[0,0,1,0],"accepted":[0,0,1,0]})"));
  EXPECT_EQ(round["tokens"], json::parse(R"([{"t":"a","a":1,"l":2}])"));
  EXPECT_EQ(round["masked"], 3);
  EXPECT_EQ(round["masked_tree"], json::parse(R"([{"p":1,"t":"b","s":0.5,"a":0,"l":0}])"))
      << "the parent of the other is no node of the tree";
}

TEST(LiveJsonTest, ARoundTellsItsTokensAndItsTree) {
  const json round = ReadRound(Parse<v1::GenerationChunk>(R"pb(
    offset: 5
    tokens: [ 97, 98, 99 ]
    text: "abcd"
    details { source: TOKEN_SOURCE_ACCEPTED text_bytes: 1 draft_source: DRAFT_SOURCE_DRAFTER }
    details { source: TOKEN_SOURCE_ACCEPTED text_bytes: 2 draft_source: DRAFT_SOURCE_LOCAL }
    details { source: TOKEN_SOURCE_TARGET text_bytes: 1 }
    kind: ROUND_KIND_MISS
    window: 2
    draft_tokens: 3
    shares { source: DRAFT_SOURCE_DRAFTER drafter: "code" draft_tokens: 2 accepted_tokens: 1 }
    shares { source: DRAFT_SOURCE_LOCAL drafter: "code" draft_tokens: 1 accepted_tokens: 1 }
    round {
      wait_seconds: 0.25
      verify_start: 100
      verify_seconds: 0.5
      tree { parent: 0 token: 97 score: 0.75 accepted: true }
      tree { parent: 1 token: 98 score: 0.5 accepted: true source: DRAFT_SOURCE_LOCAL }
      tree { parent: 0 token: 120 score: 0.125 }
    }
  )pb"));
  EXPECT_EQ(round["g"], 7);
  EXPECT_EQ(round["n"], 3);
  EXPECT_EQ(round["offset"], 5);
  EXPECT_EQ(round["kind"], "miss");
  EXPECT_EQ(round["window"], 2);
  EXPECT_EQ(round["nodes"], 3);
  EXPECT_EQ(round["sources"], json::parse(R"({"nodes":[2,1,0,0],"accepted":[1,1,0,0]})"));
  EXPECT_EQ(round["wait_ms"], 250.0);
  EXPECT_EQ(round["verify_ms"], 500.0);
  EXPECT_EQ(round["at"], 100.5);
  EXPECT_EQ(round["cut"], false);
  EXPECT_EQ(round["tokens"],
            json::parse(R"([{"t":"a","a":1,"l":0},{"t":"bc","a":1,"l":1},{"t":"d","a":0,"l":0}])"));
  EXPECT_EQ(round["tree"],
            json::parse(R"([{"p":0,"t":"a","s":0.75,"a":1,"l":0},{"p":1,"t":"b","s":0.5,"a":1,"l":1},
                                           {"p":0,"t":"x","s":0.125,"a":0,"l":0}])"));
  EXPECT_FALSE(round.contains("problem"));
}

TEST(LiveJsonTest, WithoutATraceThereIsNoTree) {
  const json round = ReadRound(Parse<v1::GenerationChunk>(R"pb(tokens: 97
                                                               text: "a"
                                                               details { text_bytes: 1 })pb"));
  EXPECT_FALSE(round.contains("tree"));
  EXPECT_FALSE(round.contains("verify_ms"));
  EXPECT_EQ(round["kind"], "undrafted");
}

// Markup, quotes, line ends, the line separators of JavaScript, control characters, zero bytes.
TEST(LiveJsonTest, TextStaysText) {
  const std::string hostile =
      std::string("</script><script>alert(\"1\")</script>\n\r\t\\ \xe2\x80\xa8 \x01 \x7f ") + '\0';
  v1::GenerationChunk chunk;
  chunk.add_tokens(1);
  chunk.set_text(hostile);
  EXPECT_EQ(ReadRound(chunk)["tokens"][0]["t"], hostile);

  LiveStart start{
      .request_id = hostile, .tenant = hostile, .reason = hostile, .has_prompt = true, .prompt = hostile};
  const json begun = Read(StartJson(1, start));
  EXPECT_EQ(begun["prompt"], hostile);
  EXPECT_EQ(begun["tenant"], hostile);
  EXPECT_EQ(Read(NoteJson(1, hostile))["note"], hostile);
  EXPECT_EQ(Read(EndJson(1, absl::InternalError(hostile), {}))["message"], hostile);
}

TEST(LiveJsonTest, BytesThatAreNoCharactersAreReplaced) {
  v1::GenerationChunk chunk;
  chunk.add_tokens(0xff);
  chunk.mutable_round()->add_tree()->set_token(0xff);
  EXPECT_EQ(ReadRound(chunk)["tree"][0]["t"], "\xef\xbf\xbd");
  EXPECT_EQ(Read(NoteJson(1, "a\xff\xfe z"))["note"], "a\xef\xbf\xbd\xef\xbf\xbd z");
}

TEST(LiveJsonTest, NumbersThatAreNoneAreNull) {
  v1::GenerationChunk chunk;
  chunk.add_tokens(97);
  chunk.mutable_round()->set_wait_seconds(std::nan(""));
  chunk.mutable_round()->set_verify_seconds(std::numeric_limits<double>::infinity());
  chunk.mutable_round()->add_tree()->set_score(std::numeric_limits<float>::quiet_NaN());
  const json round = ReadRound(chunk);
  EXPECT_TRUE(round["wait_ms"].is_null());
  EXPECT_TRUE(round["verify_ms"].is_null());
  EXPECT_TRUE(round["tree"][0]["s"].is_null());
}

TEST(LiveJsonTest, ATreeThatIsNoneIsNotShown) {
  for (const char* tree :
       {"tree { parent: 1 }", "tree {} tree { parent: 2 }", "tree { parent: 4294967295 }"}) {
    const json round = ReadRound(Parse<v1::GenerationChunk>(absl::StrCat("tokens: 97 round { ", tree, " }")));
    EXPECT_EQ(round["tree"].size(), 0u) << tree;
    EXPECT_THAT(round["problem"].get<std::string>(), HasSubstr("before its parent")) << tree;
  }
}

// Whatever details say, the texts add up to the chunk's.
TEST(LiveJsonTest, DetailsThatDoNotAddUpLoseNoText) {
  for (const char* details :
       {"", "details { text_bytes: 100 }", "details { text_bytes: 1 } details { text_bytes: 4294967295 }",
        "details {} details {} details {} details { text_bytes: 3 }"}) {
    const json round = ReadRound(
        Parse<v1::GenerationChunk>(absl::StrCat("tokens: [ 97, 98, 99 ] text: \"hello\" ", details)));
    std::string text;
    for (const json& token : round["tokens"]) text += token["t"];
    EXPECT_EQ(text, "hello") << details;
    EXPECT_EQ(round["tokens"].size(), 3u);
  }
}

TEST(LiveJsonTest, ARoundIsBoundedAndSaysWhenItIsCut) {
  v1::GenerationChunk tokens;
  for (int i = 0; i <= kMaxLiveTokens; ++i) tokens.add_tokens(97);
  EXPECT_EQ(ReadRound(tokens)["tokens"].size(), static_cast<size_t>(kMaxLiveTokens));
  EXPECT_EQ(ReadRound(tokens)["cut"], true);

  v1::GenerationChunk tree;
  tree.add_tokens(97);
  for (uint32_t i = 0; i <= kMaxLiveNodes; ++i) tree.mutable_round()->add_tree()->set_parent(i);
  EXPECT_EQ(ReadRound(tree)["tree"].size(), static_cast<size_t>(kMaxLiveNodes));
  EXPECT_EQ(ReadRound(tree)["cut"], true);

  v1::GenerationChunk text;
  text.add_tokens(97);
  for (size_t i = 0; i < kMaxLiveText; ++i) text.mutable_text()->append("\xc3\xa9");  // e with an accent.
  const json round = ReadRound(text);
  EXPECT_EQ(round["tokens"][0]["t"].get<std::string>().size(), kMaxLiveText);
  EXPECT_THAT(round["tokens"][0]["t"].get<std::string>(), Not(HasSubstr("\xef\xbf\xbd")))
      << "no half character";
  EXPECT_EQ(round["cut"], true);

  EXPECT_LT(RoundJson(1, 1, text, *LetterModel().encoder).size(), 2 * kMaxLiveText);
}

TEST(LiveJsonTest, AStartExplainsTheChoice) {
  LiveStart start{
      .request_id = "r", .tenant = "acme", .model = "letters", .drafter = "code", .reason = "auto"};
  start.explanation = Parse<v1::ChoiceExplanation>(R"pb(
    prompt_tokens: 12
    nats_per_token: 2.5
    features_fitted: true
    candidates { window: 0 tokens_per_second: 40 }
    candidates {
      drafter: "code"
      acceptance { mean: 0.75 low: 0.5 high: 1 }
      samples: 30
      costs_measured: true
      window: 4
      tokens_per_second: 90
    }
  )pb");
  const json begun = Read(StartJson(9, start));
  EXPECT_EQ(begun["g"], 9);
  EXPECT_EQ(begun["drafter"], "code");
  EXPECT_EQ(begun["reason"], "auto");
  EXPECT_EQ(begun["prompt_tokens"], 12);
  EXPECT_FALSE(begun.contains("prompt")) << "only where prompts are shown";
  ASSERT_EQ(begun["candidates"].size(), 2u);
  EXPECT_EQ(begun["candidates"][0]["chosen"], false);
  EXPECT_FALSE(begun["candidates"][0].contains("acceptance"));
  EXPECT_EQ(begun["candidates"][1]["chosen"], true);
  EXPECT_EQ(begun["candidates"][1]["acceptance"], 0.75);
  EXPECT_EQ(begun["candidates"][1]["window"], 4);
}

TEST(LiveJsonTest, OfALongPromptTheEndIsShown) {
  LiveStart start{.has_prompt = true, .prompt = std::string(kMaxLiveText, 'a') + "end"};
  const json begun = Read(StartJson(1, start));
  EXPECT_EQ(begun["prompt"].get<std::string>().size(), kMaxLiveText);
  EXPECT_TRUE(begun["prompt"].get<std::string>().ends_with("aend"));
  EXPECT_EQ(begun["prompt_cut"], true);
}

TEST(LiveJsonTest, AnEndTellsHow) {
  const json end = Read(EndJson(1, absl::OkStatus(), Parse<v1::GenerationFinished>(R"pb(
                                  reason: FINISH_REASON_MAX_TOKENS
                                  text: "tail"
                                  usage { completion_tokens: 32 }
                                  speculation { drafter: "code" drafter_lost: "gone" }
                                )pb")));
  EXPECT_EQ(end["code"], "OK");
  EXPECT_EQ(end["reason"], "max tokens");
  EXPECT_EQ(end["text"], "tail");
  EXPECT_EQ(end["tokens"], 32);
  EXPECT_EQ(end["drafter_lost"], "gone");
  EXPECT_EQ(Read(EndJson(1, absl::UnavailableError("lost"), {}))["code"], "UNAVAILABLE");
}

TEST(LiveJsonTest, TheTableHasEveryTenant) {
  RoutingTable table;
  for (const char* name : {"acme", "zeta"}) table.tenants.emplace_back().name = name;
  table.tenants[1].policy = v1::DRAFTER_POLICY_AUTO;
  const std::map<std::string, TenantTally> tallies = {{"acme", {.running = 1, .tokens = 5}},
                                                      {"gone", {.failed = 2}}};
  const json tenants = Read(TenantsJson(table, tallies));
  EXPECT_EQ(tenants["more"], 0);
  ASSERT_EQ(tenants["tenants"].size(), 3u);
  EXPECT_EQ(tenants["tenants"][0]["tenant"], "acme");
  EXPECT_EQ(tenants["tenants"][0]["tokens"], 5);
  EXPECT_EQ(tenants["tenants"][1]["policy"], "auto");
  EXPECT_EQ(tenants["tenants"][1]["tokens"], 0);
  EXPECT_EQ(tenants["tenants"][2]["tenant"], "gone");
  EXPECT_EQ(tenants["tenants"][2]["failed"], 2);
}

TEST(LiveJsonTest, TheTableIsBounded) {
  RoutingTable table;
  for (size_t i = 0; i < kMaxLiveTenants + 3; ++i)
    table.tenants.emplace_back().name = absl::StrCat("tenant-", i);
  const json tenants = Read(TenantsJson(table, {{"gone", {}}}));
  EXPECT_EQ(tenants["tenants"].size(), kMaxLiveTenants);
  EXPECT_EQ(tenants["more"], 4);
}

}  // namespace
}  // namespace tandem::router
