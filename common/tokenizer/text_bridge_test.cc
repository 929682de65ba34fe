#include "common/tokenizer/text_bridge.h"

#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::IsEmpty;

constexpr Tokenizer::EncodeOptions kPlainOptions = {.parse_special = false, .add_special_tokens = false};
constexpr char kEnglish[] =
    "Once upon a time, there was a little girl named Lucy. She had a red ball, and she didn't like to share "
    "it: "
    "\"It's mine!\" she said.\n\nBut one day, in 1999, the old man who lived next door came slowly down the "
    "road "
    "and asked her whether they might play together for an hour or two. def reverse(words):\n    return "
    "words";
constexpr char kMixed[] =
    "na\xc3\xafve caf\xc3\xa9 \xe2\x80\x94 "
    "\xe4\xbb\x8a\xe5\xa4\xa9\xe5\xa4\xa9\xe6\xb0\x94\xe5\xbe\x88\xe5\xa5\xbd "
    "\xf0\x9f\x98\x80 ok \xd0\xbf\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82, and so on";

std::shared_ptr<const Tokenizer> LoadTestTokenizer(const std::string& kind) {
  const auto tokenizer = Tokenizer::Load(TANDEM_SOURCE_DIR "/common/tokenizer/testdata/" + kind);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.value_or(nullptr);
}

TextBridge TextBetween(const std::string& draft, const std::string& target) {
  const auto target_tokenizer = LoadTestTokenizer(target);
  return TextBridge(LoadTestTokenizer(draft), target_tokenizer, target_tokenizer->vocab_size());
}

std::string BytesOf(const Tokenizer& tokenizer, absl::Span<const TokenId> tokens) {
  std::string bytes;
  for (const TokenId token : tokens) absl::StrAppend(&bytes, tokenizer.TokenBytes(token));
  return bytes;
}

const std::pair<const char*, const char*> kTextPairs[] = {
    {"gpt2", "demo"}, {"demo", "gpt2"}, {"llama2", "demo"}, {"demo", "llama2"}, {"qwen2", "mistral"}};

TEST(TextBridgeTest, TokensMakeTheTextAsItGrows) {
  for (const auto& [draft, target] : kTextPairs) {
    const TextBridge bridge = TextBetween(draft, target);
    for (const std::string text : {kEnglish, kMixed}) {
      SCOPED_TRACE(absl::StrCat(draft, " for ", target, ": ", text.substr(0, 12)));
      const TokenIds tokens = bridge.target().Encode(text, kPlainOptions).value();
      TranslatedText translated(&bridge);
      const size_t framed = translated.tokens().size();
      std::string so_far;
      for (const TokenId token : tokens) {
        translated.Append({&token, 1});
        absl::StrAppend(&so_far, bridge.target().TokenBytes(token));
        const auto made = absl::MakeConstSpan(translated.tokens()).subspan(framed);
        std::string bytes = BytesOf(bridge.draft(), made);
        // Of a text that a SentencePiece tokenizer makes a space of its own for.
        if (bytes.size() == so_far.size() - translated.pending().size() + 1) bytes.erase(0, 1);
        ASSERT_EQ(bytes + std::string(translated.pending()), so_far);
        ASSERT_LT(translated.pending().size(), 4u);
      }
      EXPECT_THAT(std::string(translated.pending()), IsEmpty());
      // As the tokenizer cuts all of it, wherever the target's tokens ended.
      const TokenIds whole = bridge.draft().Encode(BytesOf(bridge.target(), tokens), kPlainOptions).value();
      EXPECT_EQ(
          TokenIds(translated.tokens().begin() + static_cast<ptrdiff_t>(framed), translated.tokens().end()),
          whole);
      EXPECT_NEAR(translated.tokens_per_token(),
                  static_cast<double>(translated.tokens().size()) / static_cast<double>(tokens.size()), 1e-9);
    }
  }
}

TEST(TextBridgeTest, GoesOnBehindTheTargetsTokens) {
  std::mt19937_64 random(1);
  for (const auto& [draft, target] : kTextPairs) {
    const TextBridge bridge = TextBetween(draft, target);
    for (const std::string text : {kEnglish, kMixed}) {
      const TokenIds tokens = bridge.target().Encode(text, kPlainOptions).value();
      size_t as_in_one = 0;
      size_t words = 0;
      for (size_t split = 1; split < tokens.size(); ++split) {
        const auto before = absl::MakeConstSpan(tokens).first(split);
        const std::string rest = BytesOf(bridge.target(), absl::MakeConstSpan(tokens).subspan(split));
        const std::vector<TextBridge::PlacedToken> placed = bridge.ToTarget(before, rest);
        if (placed.empty()) continue;  // It begins in the middle of a character.
        TokenIds made;
        for (const TextBridge::PlacedToken& token : placed) {
          made.push_back(token.token);
          EXPECT_EQ(token.end, BytesOf(bridge.target(), made).size());
        }
        EXPECT_EQ(BytesOf(bridge.target(), made), rest);
        if (rest.front() != ' ') continue;
        ++words;
        if (std::equal(made.begin(), made.end(), tokens.begin() + static_cast<ptrdiff_t>(split),
                       tokens.end())) {
          ++as_in_one;
        }
      }
      EXPECT_GT(words, 5u);
      EXPECT_GE(as_in_one * 100, words * 95) << draft << " for " << target;
    }
  }
}

TEST(TextBridgeTest, PairsSpecialTokens) {
  const TextBridge bridge = TextBetween("demo", "demo");
  for (const char* content : {"<|bos|>", "<|user|>", "<|end|>"}) {
    const TokenId token = bridge.target().FindToken(content).value();
    EXPECT_EQ(bridge.SpecialToDraft(token), token);
    EXPECT_EQ(bridge.SpecialToTarget(token), token);
  }
  EXPECT_EQ(bridge.SpecialToDraft(17), std::nullopt);
  // Others by what they are for; the rest has no counterpart and is left out.
  const TemporaryFolder folder;
  folder.Write(
      "tokenizer.json",
      ReadFile(TANDEM_SOURCE_DIR "/common/tokenizer/testdata/llama2/tokenizer.json", 64 << 20).value());
  folder.Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const auto llama = Tokenizer::Load(folder.path());
  ASSERT_TRUE(llama.ok()) << llama.status();
  const TextBridge other(*llama, LoadTestTokenizer("demo"), 4096);
  ASSERT_TRUE(other.draft().eos().has_value() && other.target().eos().has_value());
  EXPECT_EQ(other.SpecialToDraft(*other.target().eos()), other.draft().eos());
  EXPECT_EQ(other.SpecialToTarget(*other.draft().eos()), other.target().eos());
  EXPECT_EQ(other.SpecialToDraft(*other.target().FindToken("<|user|>")), std::nullopt);
  TranslatedText translated(&other);
  TokenIds tokens = {*other.target().bos(), *other.target().FindToken("<|user|>")};
  const TokenIds words = other.target().Encode(" two words", kPlainOptions).value();
  tokens.insert(tokens.end(), words.begin(), words.end());
  tokens.push_back(*other.target().eos());
  translated.Append(tokens);
  EXPECT_EQ(translated.tokens().front(), *other.draft().bos()) << "once";
  EXPECT_NE(translated.tokens()[1], *other.draft().bos());
  EXPECT_EQ(translated.tokens().back(), *other.draft().eos());
  EXPECT_THAT(BytesOf(other.draft(), translated.tokens()), ::testing::HasSubstr(" two words"));
}

TEST(TextBridgeTest, GoesOnBehindWhatIsNoText) {
  const TextBridge bridge = TextBetween("gpt2", "demo");
  const auto byte = [&bridge](char value) {
    for (TokenId token = 0; token < bridge.target().vocab_size(); ++token) {
      if (bridge.target().TokenBytes(token) == std::string(1, value)) return token;
    }
    ADD_FAILURE() << "no token for a byte";
    return TokenId{0};
  };
  TranslatedText translated(&bridge);
  translated.Append(bridge.target().Encode("A first sentence.", kPlainOptions).value());
  const TokenIds first = translated.tokens();
  translated.Append({{byte('\xff'), byte('\xfe')}});
  for (int i = 0; i < 20; ++i)
    translated.Append(bridge.target().Encode(" More of it follows", kPlainOptions).value());
  EXPECT_THAT(BytesOf(bridge.draft(), translated.tokens()),
              ::testing::EndsWith(" More of it follows More of it follows"));
  EXPECT_THAT(BytesOf(bridge.draft(), translated.tokens()), ::testing::HasSubstr("A first"));
  // A character in parts.
  translated.Append({{byte('\xe4')}});
  EXPECT_EQ(translated.pending(), "\xe4");
  translated.Append({{byte('\xbb'), byte('\x8a')}});
  EXPECT_EQ(translated.pending(), "");
  EXPECT_THAT(BytesOf(bridge.draft(), translated.tokens()), ::testing::EndsWith("\xe4\xbb\x8a"));
  // Ids without a token say nothing.
  translated.Append({{-1, 1 << 20}});
}

TEST(TextBridgeTest, KnowsWholeCharacters) {
  EXPECT_EQ(WholeCharacters(""), 0u);
  EXPECT_EQ(WholeCharacters("ab"), 2u);
  EXPECT_EQ(WholeCharacters("ab\xe4\xbb\x8a"), 5u);
  EXPECT_EQ(WholeCharacters("ab\xe4\xbb"), 2u);
  EXPECT_EQ(WholeCharacters("ab\xe4"), 2u);
  EXPECT_EQ(WholeCharacters("\xf0\x9f\x98"), 0u);
  EXPECT_EQ(WholeCharacters("\xff"), 1u) << "never a character";
  EXPECT_EQ(WholeCharacters("\x8a\x8a\x8a\x8a"), 4u);
}

}  // namespace
}  // namespace tandem
