#include "verifier/session/output_assembler.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/tokenizer/byte_alphabet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Reason = OutputEnd::Reason;

// A byte-level vocabulary: ids 0 to 255 are the bytes, then a few words, then special tokens.
constexpr const char* kWords[] = {"ab", "bc", "abc", "cab", "\xC3\xA9\xC3", "\xA9z", "STOP", " the end"};
constexpr TokenId kFirstWord = 256;
constexpr TokenId kEnd = kFirstWord + std::size(kWords);  // "<|end|>"
constexpr TokenId kTool = kEnd + 1;                       // "<|tool|>"
constexpr TokenId kNumTokens = kTool + 1;

std::shared_ptr<const Tokenizer> MakeTokenizer() {
  nlohmann::json vocabulary = nlohmann::json::object();
  const auto add = [&](const std::string& bytes, TokenId id) {
    std::string content;
    AppendByteAlphabet(bytes, content);
    vocabulary[content] = id;
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)), byte);
  for (size_t i = 0; i < std::size(kWords); ++i) add(kWords[i], kFirstWord + static_cast<TokenId>(i));
  const auto special = [](const char* content, TokenId id) {
    return nlohmann::json{{"id", id}, {"content", content}, {"special", true}};
  };
  const nlohmann::json definition = {
      {"added_tokens", {special("<|end|>", kEnd), special("<|tool|>", kTool)}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       ("output_assembler_test." + std::to_string(std::random_device{}()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << definition.dump();
  auto tokenizer = Tokenizer::Load(folder.string());
  std::filesystem::remove_all(folder);
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
  return *std::move(tokenizer);
}

class OutputAssemblerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer_ = MakeTokenizer(); }
  static void TearDownTestSuite() { tokenizer_.reset(); }

  static OutputAssembler Make(std::vector<std::string> stop, uint32_t max_tokens = 1000,
                              bool include_special_tokens = false) {
    return OutputAssembler(tokenizer_, {.stop = std::move(stop),
                                        .stop_tokens = {kEnd},
                                        .max_tokens = max_tokens,
                                        .include_special_tokens = include_special_tokens});
  }

  // Pushes the bytes of `text` as single tokens and returns each piece's text.
  static std::vector<std::string> PushBytes(OutputAssembler& output, absl::string_view text) {
    std::vector<std::string> pieces;
    for (char byte : text) pieces.push_back(output.Push(static_cast<unsigned char>(byte)).text);
    return pieces;
  }

  static std::shared_ptr<const Tokenizer> tokenizer_;
};

std::shared_ptr<const Tokenizer> OutputAssemblerTest::tokenizer_;

TEST_F(OutputAssemblerTest, PassesTextThroughAndEndsAtAStopToken) {
  OutputAssembler output = Make({});
  EXPECT_THAT(PushBytes(output, "hi"), ElementsAre("h", "i"));
  const OutputPiece last = output.Push(kEnd);
  EXPECT_THAT(last.text, IsEmpty());
  ASSERT_TRUE(last.end.has_value());
  EXPECT_EQ(last.end->reason, Reason::kStopToken);
  EXPECT_THAT(last.end->text, IsEmpty());
  EXPECT_TRUE(output.ended());
  EXPECT_EQ(output.num_tokens(), 3u);
}

TEST_F(OutputAssemblerTest, HoldsBackTheBeginningOfAStopString) {
  OutputAssembler output = Make({"aab"});
  EXPECT_THAT(PushBytes(output, "xaaa"), ElementsAre("x", "", "", "a"));
  EXPECT_THAT(PushBytes(output, "c"), ElementsAre("aac"));
  EXPECT_THAT(PushBytes(output, "yaa"), ElementsAre("y", "", ""));
  const OutputPiece last = output.Push('b');
  ASSERT_TRUE(last.end.has_value());
  EXPECT_EQ(last.end->reason, Reason::kStopString);
  EXPECT_EQ(last.end->matched_stop, "aab");
  EXPECT_EQ(last.text + last.end->text, "");
}

TEST_F(OutputAssemblerTest, FindsAStopStringAcrossAndInsideTokens) {
  OutputAssembler across = Make({"bca"});
  EXPECT_EQ(across.Push(kFirstWord).text, "a");           // "ab"
  const OutputPiece piece = across.Push(kFirstWord + 3);  // "cab"
  ASSERT_TRUE(piece.end.has_value());
  EXPECT_EQ(piece.end->text, "");
  EXPECT_EQ(piece.end->matched_stop, "bca");

  OutputAssembler inside = Make({"he"});
  const OutputPiece cut = inside.Push(kFirstWord + 7);  // " the end"
  ASSERT_TRUE(cut.end.has_value());
  EXPECT_EQ(cut.end->text, " t");
}

// "bc" is complete before "abcd" can be, whether the text comes in bytes or at once.
TEST_F(OutputAssemblerTest, TheFirstStopStringToBeCompleteWins) {
  OutputAssembler bytes = Make({"abcd", "bc"});
  EXPECT_THAT(PushBytes(bytes, "xab"), ElementsAre("x", "", ""));
  OutputPiece piece = bytes.Push('c');
  ASSERT_TRUE(piece.end.has_value());
  EXPECT_EQ(piece.end->text, "a");
  EXPECT_EQ(piece.end->matched_stop, "bc");

  // Of two complete at the same byte, nothing of the longer one may get out.
  OutputAssembler longest = Make({"c", "bc", "abc"});
  piece = longest.Push(kFirstWord + 2);  // "abc"
  ASSERT_TRUE(piece.end.has_value());
  EXPECT_EQ(piece.end->text, "");
  EXPECT_EQ(piece.end->matched_stop, "abc");
}

TEST_F(OutputAssemblerTest, MaxTokensFlushesWhatIsHeldBack) {
  OutputAssembler output = Make({"abz"}, 2);
  EXPECT_FALSE(output.Push('a').end.has_value());
  const OutputPiece last = output.Push('b');
  ASSERT_TRUE(last.end.has_value());
  EXPECT_EQ(last.end->reason, Reason::kMaxTokens);
  EXPECT_EQ(last.end->text, "ab");
}

TEST_F(OutputAssemblerTest, TheLastTokenCanStillCompleteAStopStringOrBeAStopToken) {
  OutputAssembler with_string = Make({"ab"}, 2);
  with_string.Push('a');
  EXPECT_EQ(with_string.Push('b').end->reason, Reason::kStopString);
  OutputAssembler with_token = Make({"ab"}, 2);
  with_token.Push('a');
  const OutputPiece last = with_token.Push(kEnd);
  EXPECT_EQ(last.end->reason, Reason::kStopToken);
  EXPECT_EQ(last.end->text, "a");
}

TEST_F(OutputAssemblerTest, KeepsCharactersWhole) {
  OutputAssembler output = Make({});
  EXPECT_EQ(output.Push(kFirstWord + 4).text, "\xC3\xA9");  // One and a half.
  EXPECT_EQ(output.Push(kFirstWord + 5).text,
            "\xC3\xA9"
            "z");  // The other half.
  EXPECT_THAT(PushBytes(output, "\xF0\x9F\x99\x82"), ElementsAre("", "", "", "\xF0\x9F\x99\x82"));
  output.Push(0xC3);
  EXPECT_EQ(output.Push(kEnd).end->text, "\xEF\xBF\xBD");
}

TEST_F(OutputAssemblerTest, FindsStopStringsOfManyByteCharacters) {
  OutputAssembler output = Make({"\xC3\xA9z"});
  // The first byte of the stop string alone holds nothing back: it is not yet text.
  EXPECT_THAT(PushBytes(output, "\xC3\xA8\xC3\xA9"), ElementsAre("", "\xC3\xA8", "", ""));
  EXPECT_EQ(output.Push('z').end->text, "");
  // A replacement character at the end is text like any other.
  OutputAssembler replaced = Make({"\xEF\xBF\xBD"});
  replaced.Push('x');
  replaced.Push(0xC3);
  const OutputPiece last = replaced.Push(kEnd);
  EXPECT_EQ(last.end->reason, Reason::kStopString);
  EXPECT_EQ(last.end->text, "");
}

TEST_F(OutputAssemblerTest, SpecialTokensAreTextOnlyWhenAskedFor) {
  OutputAssembler without = Make({"tool"});
  EXPECT_EQ(without.Push(kTool).text, "");
  EXPECT_FALSE(without.ended());
  OutputAssembler with = Make({"tool"}, 1000, /*include_special_tokens=*/true);
  const OutputPiece piece = with.Push(kTool);
  ASSERT_TRUE(piece.end.has_value());
  EXPECT_EQ(piece.end->text, "<|");
  // A stop token has no text even so.
  OutputAssembler ended = Make({}, 1000, /*include_special_tokens=*/true);
  EXPECT_EQ(ended.Push(kTool).text, "<|tool|>");
  EXPECT_EQ(ended.Push(kEnd).end->text, "");
}

TEST_F(OutputAssemblerTest, WhatEndsItIsTextWhereThatIsAskedFor) {
  const auto text_of = [](StopRules rules, const TokenIds& tokens) {
    rules.max_tokens = 100;
    rules.include_stop = true;
    OutputAssembler assembler(tokenizer_, std::move(rules));
    std::string text;
    for (const TokenId token : tokens) {
      OutputPiece piece = assembler.Push(token);
      text += piece.text;
      if (piece.end.has_value()) return absl::StrCat(text, piece.end->text, "|", piece.end->matched_stop);
    }
    return text + "|no end";
  };
  constexpr TokenId kStop = kFirstWord + 6;
  EXPECT_EQ(text_of({.stop = {"TO"}}, {'x', kStop}), "xSTO|TO") << "but nothing after it";
  EXPECT_EQ(text_of({.stop = {"xab"}}, {'x', kFirstWord}), "xab|xab");
  EXPECT_EQ(text_of({.stop_tokens = {'z'}}, {'x', 'z'}), "xz|");
  EXPECT_EQ(text_of({.stop_tokens = {kEnd}}, {'x', kEnd}), "x|") << "a special token has no text";
  EXPECT_EQ(text_of({.stop_tokens = {kEnd}, .include_special_tokens = true}, {'x', kEnd}), "x<|end|>|");
}

TEST_F(OutputAssemblerTest, ReplayGoesOnWhereAnotherLeftOff) {
  OutputAssembler output = Make({"abcx"}, 5);
  EXPECT_FALSE(output.Replay({'q', 'a', 'b'}).has_value());
  EXPECT_EQ(output.num_tokens(), 3u);
  EXPECT_EQ(output.Push('c').text, "");
  const OutputPiece last = output.Push('d');
  EXPECT_EQ(last.end->reason, Reason::kMaxTokens);
  EXPECT_EQ(last.end->text, "abcd");
}

TEST_F(OutputAssemblerTest, ReplayFindsAnEndAndIgnoresWhatFollows) {
  OutputAssembler output = Make({"abz"});
  const std::optional<OutputEnd> end = output.Replay({'q', 'a', 'b', kEnd, 'x', 'y'});
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->reason, Reason::kStopToken);
  EXPECT_EQ(end->text, "ab");
  EXPECT_TRUE(output.ended());
  EXPECT_EQ(output.num_tokens(), 4u);
}

TEST_F(OutputAssemblerTest, IdsWithoutATokenAddNothing) {
  OutputAssembler output = Make({"ab"});
  output.Push('a');
  EXPECT_EQ(output.Push(kNumTokens + 5).text, "");
  EXPECT_EQ(output.Push('b').end->reason, Reason::kStopString);
}

struct WholeOutput {
  std::string text;
  Reason reason = Reason::kMaxTokens;
  std::string matched_stop;
};

// The definition, computed from the whole text.
WholeOutput Reference(const Tokenizer& tokenizer, const StopRules& rules, std::vector<TokenId> tokens) {
  WholeOutput whole;
  tokens.resize(std::min<size_t>(tokens.size(), rules.max_tokens));
  const auto stop_token = std::find_if(tokens.begin(), tokens.end(),
                                       [&](TokenId token) { return rules.stop_tokens.contains(token); });
  if (stop_token != tokens.end()) whole.reason = Reason::kStopToken;
  tokens.erase(stop_token, tokens.end());
  whole.text = tokenizer.Decode(tokens, !rules.include_special_tokens);
  size_t best_end = std::string::npos;
  for (const std::string& stop : rules.stop) {
    const size_t at = whole.text.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < best_end || (end == best_end && stop.size() > whole.matched_stop.size())) {
      best_end = end;
      whole.matched_stop = stop;
      whole.reason = Reason::kStopString;
    }
  }
  if (best_end != std::string::npos) whole.text.resize(best_end - whole.matched_stop.size());
  return whole;
}

TEST_F(OutputAssemblerTest, AgreesWithTheWholeText) {
  std::mt19937 random(11);
  const TokenId alphabet[] = {'a', 'b', 'c', 0xC3, 0xA9, 256, 257, 258, 259, 260, 261, kTool};
  const std::string letters[] = {"a", "b", "c", "\xC3\xA9", "z", "<|", "\xEF\xBF\xBD"};
  int num_by_reason[3] = {};
  for (int round = 0; round < 20000; ++round) {
    StopRules rules = {.stop_tokens = {kEnd}, .include_special_tokens = random() % 2 == 0};
    for (uint32_t i = random() % 4; i > 0; --i) {
      std::string& stop = rules.stop.emplace_back();
      for (uint32_t length = 1 + random() % 6; length > 0; --length) {
        stop += letters[random() % std::size(letters)];
      }
    }
    rules.max_tokens = 1 + random() % 40;
    std::vector<TokenId> tokens(40);
    for (TokenId& token : tokens) {
      token = random() % 50 == 0 ? kEnd : alphabet[random() % std::size(alphabet)];
    }
    const WholeOutput expected = Reference(*tokenizer_, rules, tokens);
    ++num_by_reason[static_cast<int>(expected.reason)];
    size_t longest = 0;
    for (const std::string& stop : rules.stop) longest = std::max(longest, stop.size());

    // Some tokens are replayed into a second assembler, which must go on as the first would have.
    OutputAssembler output(tokenizer_, rules);
    const size_t num_before = random() % 10;
    std::string text;
    std::optional<OutputEnd> end;
    size_t next = 0;
    for (; next < num_before && !end.has_value(); ++next) {
      OutputPiece piece = output.Push(tokens[next]);
      text += piece.text;
      end = piece.end;
    }
    OutputAssembler resumed(tokenizer_, rules);
    end = resumed.Replay(absl::MakeConstSpan(tokens).first(next));
    for (; next < tokens.size() && !end.has_value(); ++next) {
      OutputPiece piece = resumed.Push(tokens[next]);
      text += piece.text;
      end = piece.end;
    }
    ASSERT_TRUE(end.has_value()) << "round " << round;
    EXPECT_LE(end->text.size(), longest + 16) << "held back too much in round " << round;
    text += end->text;
    ASSERT_EQ(text, expected.text) << "round " << round;
    ASSERT_EQ(end->reason, expected.reason) << "round " << round;
    ASSERT_EQ(end->matched_stop, expected.matched_stop) << "round " << round;
  }
  for (int count : num_by_reason) EXPECT_GT(count, 500);
}

TEST_F(OutputAssemblerTest, AStopStringEndsNothingBeforeTheLeastLength) {
  OutputAssembler output(tokenizer_, {.stop = {"ab"}, .max_tokens = 20, .min_tokens = 5});
  // The first is complete with the second token, and is text like any other.
  EXPECT_THAT(PushBytes(output, "abxa"), ElementsAre("", "ab", "x", ""));
  // The second is complete with the fifth.
  const OutputPiece last = output.Push('b');
  ASSERT_TRUE(last.end.has_value());
  EXPECT_EQ(last.end->reason, Reason::kStopString);
  EXPECT_EQ(last.text + last.end->text, "");
  EXPECT_EQ(output.num_tokens(), 5u);
}

TEST_F(OutputAssemblerTest, AnIgnoredStopStringMayBeginTheNext) {
  OutputAssembler output(tokenizer_, {.stop = {"aa"}, .max_tokens = 20, .min_tokens = 3});
  EXPECT_THAT(PushBytes(output, "aa"), ElementsAre("", "a"));
  const OutputPiece last = output.Push('a');
  ASSERT_TRUE(last.end.has_value());
  EXPECT_EQ(last.end->matched_stop, "aa");
  EXPECT_EQ(last.end->text, "");
}

}  // namespace
}  // namespace tandem
