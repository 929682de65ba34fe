#include "router/http/token_logprobs.h"

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::router {
namespace {

// Tokens that are a few texts, not all of them whole characters.
class FewTokens final : public PromptEncoder {
 public:
  absl::StatusOr<TokenIds> EncodeText(absl::string_view, size_t, bool) const override { return TokenIds{1}; }
  absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt&, size_t) const override { return TokenIds{1}; }
  absl::string_view TokenBytes(TokenId token) const override {
    const auto found = texts_.find(token);
    return found == texts_.end() ? absl::string_view() : absl::string_view(found->second);
  }
  bool IsSpecial(TokenId token) const override { return token == 1; }
  std::string DeliveredText(absl::Span<const TokenId>, absl::Span<const std::string>, bool) const override {
    return "";
  }
  std::string Decode(absl::Span<const TokenId>, bool) const override { return ""; }

 private:
  const std::map<TokenId, std::string> texts_ = {{1, "<s>"},      {2, " Hi"},   {3, "\xc3"},
                                                 {4, "\xa9"},     {5, "!"},     {6, "!"},
                                                 {7, "\xe2\x80"}, {8, "\x94x"}, {9, "\xc3"}};
};

std::vector<size_t> Offsets(EchoOffsets offsets, const TokenIds& tokens) {
  const FewTokens encoder;
  std::vector<size_t> places;
  for (const TokenId token : tokens)
    places.push_back(offsets.Next(encoder.TokenBytes(token), encoder.IsSpecial(token)));
  return places;
}

using Places = std::vector<size_t>;

TEST(EchoOffsetsTest, AreCharactersOfTheTextThatWasGiven) {
  // The begin-of-text has no text, and the first word's blank is the tokenizer's.
  EXPECT_EQ(Offsets(EchoOffsets("Hi\xc3\xa9! Hi", 1), {1, 2, 3, 4, 5, 2}), (Places{0, 0, 2, 2, 3, 4}));
  // Where the text has the blank itself, it counts.
  EXPECT_EQ(Offsets(EchoOffsets(" Hi!", 1), {1, 2, 5}), (Places{0, 0, 3}));
  // A special token that is written out has a text, and one that is put into it has none.
  EXPECT_EQ(Offsets(EchoOffsets("<s>!", 1), {1, 1, 5}), (Places{0, 0, 3}));
  EXPECT_EQ(Offsets(EchoOffsets("!!", 0), {5, 1, 5}), (Places{0, 1, 1}));
  // Three bytes in two tokens, of which the second has more.
  EXPECT_EQ(Offsets(EchoOffsets("\xe2\x80\x94x!", 0), {7, 8, 5}), (Places{0, 0, 2}));
  // A tokenizer that changes letters: as many as the token has.
  EXPECT_EQ(Offsets(EchoOffsets("\xc4\xa7I!", 0), {2, 5}), (Places{0, 3}));
  EXPECT_EQ(Offsets(EchoOffsets("", 1), {1}), (Places{0}));
  EXPECT_EQ(Offsets(EchoOffsets("a", 0), {2, 2, 5}), (Places{0, 1, 1})) << "never behind the text";
}

TEST(EchoOffsetsTest, AreCharactersOfTheTokensText) {
  EXPECT_EQ(Offsets(EchoOffsets(0), {1, 2, 3, 4, 5}), (Places{0, 3, 6, 6, 7}));
  EXPECT_EQ(Offsets(EchoOffsets(1), {1, 2, 5}), (Places{0, 0, 3}));
  // A byte that never becomes a character counts as one.
  EXPECT_EQ(Offsets(EchoOffsets(0), {4, 5, 3, 5, 5}), (Places{0, 1, 2, 2, 4}));
}

TEST(TokenLogprobsTest, AlternativesOfOneSpellingKeepApart) {
  const FewTokens encoder;
  const TokenSpelling spelling(encoder, /*as_ids=*/false);
  v1::TokenDetail detail;
  detail.set_logprob(-3.0f);
  for (const uint32_t token : {5u, 6u, 3u, 9u, 7u}) {
    detail.add_top_logprobs()->set_token(token);
    detail.mutable_top_logprobs()->rbegin()->set_logprob(-static_cast<float>(token));
  }
  OrderedJson entry = TextLogprob(6, detail, 2, spelling);
  EXPECT_EQ(entry["token"], "token_id:6") << "as it is called among the alternatives";
  EXPECT_EQ(entry["top"].dump(),
            R"({"!":-5.0,"token_id:6":-6.0,"bytes:\\xc3":-3.0,"token_id:9":-9.0,"bytes:\\xe2\\x80":-7.0})");
  EXPECT_EQ(entry["offset"], 2);
  // The token itself is always there.
  entry = TextLogprob(2, detail, 0, spelling);
  EXPECT_EQ(entry["token"], " Hi");
  EXPECT_EQ(entry["top"][" Hi"], -3.0);
  detail.clear_top_logprobs();
  entry = TextLogprob(4, detail, 0, spelling);
  EXPECT_EQ(entry["top"].dump(), R"({"bytes:\\xa9":-3.0})");
  entry = TextLogprob(4, detail, 0, TokenSpelling(encoder, /*as_ids=*/true));
  EXPECT_EQ(entry["token"], "token_id:4");
  EXPECT_EQ(entry["top"].dump(), R"({"token_id:4":-3.0})");
}

TEST(TokenLogprobsTest, CharactersAreCountedAsTheyBecomeComplete) {
  CharacterCount count;
  count.Add("a\xe2");
  EXPECT_EQ(count.whole(), 1u);
  count.Add("\x80");
  EXPECT_EQ(count.whole(), 1u);
  count.Add("\x94");
  EXPECT_EQ(count.whole(), 2u);
  count.Add("\xe2!");
  EXPECT_EQ(count.whole(), 4u);
  EXPECT_EQ(NumCharacters("\xf0\x9f\x98\x80z"), 2u);
  EXPECT_EQ(TextOfBytes("a\xe2!"), "a\xef\xbf\xbd!");
}

}  // namespace
}  // namespace tandem::router
