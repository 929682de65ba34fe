#include "common/tokenizer/vocabulary_bridge.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TokenId kNone = VocabularyBridge::kNone;

// A, B, AB and two special tokens, over plain characters.
json BridgeDefinition() {
  return json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true},
                     {"id": 4, "content": "</s>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {"A": 0, "B": 1, "AB": 2}, "merges": ["A B"]}
  })");
}

std::shared_ptr<const Tokenizer> LoadWritten(const json& definition, const char* config = "{}") {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/tokenizer.json") << definition.dump();
  std::ofstream(folder.path() + "/tokenizer_config.json") << config;
  const auto tokenizer = Tokenizer::Load(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.value_or(nullptr);
}

absl::StatusOr<VocabularyBridge> BridgeBetween(const Tokenizer& draft, int32_t draft_width,
                                               const Tokenizer& target, int32_t target_width) {
  return VocabularyBridge::Between({draft, draft_width}, {target, target_width});
}

std::vector<TokenId> DraftIdsOf(const VocabularyBridge& bridge) {
  std::vector<TokenId> ids;
  for (TokenId token = 0; token < bridge.target_width(); ++token) {
    ids.push_back(bridge.HasDraft(token) ? bridge.ToDraft(token) : kNone);
  }
  return ids;
}

TEST(VocabularyBridgeTest, BridgesPadding) {
  const auto tokenizer = LoadWritten(BridgeDefinition());
  const auto bridge = BridgeBetween(*tokenizer, 8, *tokenizer, 6);
  ASSERT_TRUE(bridge.ok()) << bridge.status();
  EXPECT_THAT(DraftIdsOf(*bridge), ElementsAre(0, 1, 2, 3, 4, kNone));
  EXPECT_EQ(bridge->Describe(), "logits of 8 ids for 6");
  const float kNever = -std::numeric_limits<float>::infinity();
  std::vector<float> logits(6, 77.0f);
  bridge->ToTarget(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, absl::MakeSpan(logits));
  EXPECT_THAT(logits, ElementsAre(1, 2, 3, 4, 5, kNever));
}

TEST(VocabularyBridgeTest, BridgesAddedTokens) {
  json other = BridgeDefinition();
  other["added_tokens"] = json::parse(R"([{"id": 7, "content": "<s>", "special": true},
                                          {"id": 3, "content": "<tool>", "special": false},
                                          {"id": 5, "content": "</s>", "special": true}])");
  const auto draft = LoadWritten(BridgeDefinition(), R"({"eos_token": "</s>", "bos_token": "<s>"})");
  const auto target = LoadWritten(other);
  const auto bridge = BridgeBetween(*draft, 5, *target, 9);
  ASSERT_TRUE(bridge.ok()) << bridge.status();
  EXPECT_THAT(DraftIdsOf(*bridge), ElementsAre(0, 1, 2, kNone, kNone, 4, kNone, 3, kNone));
  EXPECT_EQ(bridge->stand_in(), 4) << "the draft model's end of text";
  EXPECT_EQ(bridge->ToDraft(3), 4);
  EXPECT_EQ(bridge->Describe(),
            "logits of 5 ids for 9, 2 tokens under other ids, 1 token of the target's alone");
  const auto back = BridgeBetween(*target, 9, *draft, 5);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(DraftIdsOf(*back), ElementsAre(0, 1, 2, 7, 5));
  EXPECT_EQ(back->difference().draft_only, 1u);
  EXPECT_EQ(back->stand_in(), 0) << "it names no end of text";
}

TEST(VocabularyBridgeTest, BridgesOrdinaryTokensUnderOtherIds) {
  json other = BridgeDefinition();
  other["model"]["vocab"] = {{"A", 2}, {"B", 0}, {"AB", 1}};
  other["added_tokens"][1]["special"] = false;
  const auto bridge = BridgeBetween(*LoadWritten(BridgeDefinition()), 5, *LoadWritten(other), 5);
  ASSERT_TRUE(bridge.ok()) << bridge.status();
  EXPECT_THAT(DraftIdsOf(*bridge), ElementsAre(1, 2, 0, 3, 4));
  EXPECT_EQ(bridge->Describe(), "3 tokens under other ids");
  other["model"]["vocab"] = BridgeDefinition()["model"]["vocab"];
  EXPECT_EQ(BridgeBetween(*LoadWritten(BridgeDefinition()), 5, *LoadWritten(other), 5)->Describe(),
            "only in which tokens are special");
}

TEST(VocabularyBridgeTest, SaysHowOtherVocabulariesDiffer) {
  json other = BridgeDefinition();
  other["model"]["vocab"]["C"] = 5;
  absl::Status status = BridgeBetween(*LoadWritten(BridgeDefinition()), 8, *LoadWritten(other), 8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("the draft model lacks 1 of the target's 4 ordinary tokens, the target lacks 0 of "
                "the draft model's 3; the first token that differs has id 5: the target's is \"C\", the "
                "draft model's no token"));
  status = BridgeBetween(*LoadWritten(other), 8, *LoadWritten(BridgeDefinition()), 8).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("the target's is no token, the draft model's \"C\""));
  // Another content of an ordinary token, which is long and has letters of several bytes.
  std::string content = "x";
  for (int i = 0; i < 40; ++i) content += "\xc3\xa4";
  other = BridgeDefinition();
  other["model"]["vocab"] = {{"A", 0}, {"B", 1}, {content, 2}};
  other["model"]["merges"] = json::array();
  status = BridgeBetween(*LoadWritten(BridgeDefinition()), 8, *LoadWritten(other), 8).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("\xc3\xa4...\", the draft model's \"AB\""));
  // The same content, of which the decoders make other text.
  json bytes = BridgeDefinition();
  bytes["decoder"] = {{"type", "Replace"}, {"pattern", {{"String", "B"}}}, {"content", " "}};
  status = BridgeBetween(*LoadWritten(BridgeDefinition()), 8, *LoadWritten(bytes), 8).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("lacks 2 of the target's 3"));
}

TEST(VocabularyBridgeTest, RefusesMapsThatAreNone) {
  const auto error = [](std::vector<TokenId> ids, int32_t width, TokenId stand_in) {
    const absl::Status status = VocabularyBridge::FromMap(std::move(ids), width, stand_in).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({0, 4}, 4, 0), HasSubstr("from id 1 to 4, expected [0, 4)"));
  EXPECT_THAT(error({0, -2}, 4, 0), HasSubstr("to -2"));
  EXPECT_THAT(error({1, 2, 1}, 4, 0), HasSubstr("from two ids, the second being 2, to 1"));
  EXPECT_THAT(error({1}, 4, 4), HasSubstr("stand-in 4"));
  EXPECT_THAT(error({1}, 4, -1), HasSubstr("stand-in -1"));
  EXPECT_THAT(error({}, 4, 0), HasSubstr("expected some on both sides"));
  EXPECT_THAT(error({kNone}, 0, 0), HasSubstr("expected some on both sides"));
}

TEST(VocabularyBridgeTest, MovesEveryLogit) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const size_t draft_width = 1 + random() % 50;
    const size_t target_width = 1 + random() % 50;
    TokenIds ids(draft_width);
    std::iota(ids.begin(), ids.end(), 0);
    // In order, in runs, or in none.
    if (round % 3 != 0)
      std::shuffle(ids.begin() + static_cast<ptrdiff_t>(draft_width / 2), ids.end(), random);
    ids.resize(target_width, kNone);
    if (round % 2 == 0) ids[random() % target_width] = kNone;
    const auto bridge = VocabularyBridge::FromMap(ids, static_cast<int32_t>(draft_width), 0);
    ASSERT_TRUE(bridge.ok()) << bridge.status();
    std::vector<float> draft(draft_width);
    std::iota(draft.begin(), draft.end(), 100.0f);
    std::vector<float> target(target_width, 0.0f);
    bridge->ToTarget(draft, absl::MakeSpan(target));
    for (size_t token = 0; token < target_width; ++token) {
      EXPECT_EQ(target[token], ids[token] == kNone ? -std::numeric_limits<float>::infinity()
                                                   : draft[static_cast<size_t>(ids[token])]);
    }
  }
}

TEST(VocabularyBridgeTest, ADemoVocabularyBridgesToItself) {
  const std::string folder = TANDEM_SOURCE_DIR "/deploy/demo-models/tandem-target-15m";
  const auto tokenizer = Tokenizer::Load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto bridge = BridgeBetween(**tokenizer, 4096, **tokenizer, 5000);
  ASSERT_TRUE(bridge.ok()) << bridge.status();
  EXPECT_EQ(bridge->difference().moved, 0u);
  for (TokenId token = 0; token < 5000; ++token) EXPECT_EQ(bridge->HasDraft(token), token < 4096);
  EXPECT_EQ(bridge->stand_in(), *(*tokenizer)->eos());
  // Another family's is another one.
  const auto other = Tokenizer::Load(TANDEM_SOURCE_DIR "/common/tokenizer/testdata/llama2");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(BridgeBetween(**tokenizer, 4096, **other, 32000).ok());
}

}  // namespace
}  // namespace tandem
