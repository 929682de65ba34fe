#include "common/drafting/ngram_index.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

// Positions after which the last `n` tokens occurred before, most recent first.
std::vector<uint32_t> Occurrences(const TokenIds& text, size_t n) {
  std::vector<uint32_t> found;
  for (size_t end = text.size() - 1; end >= n; --end) {
    if (absl::MakeConstSpan(text).subspan(end - n, n) == absl::MakeConstSpan(text).last(n)) {
      found.push_back(static_cast<uint32_t>(end));
    }
  }
  if (found.size() > 16) found.resize(16);
  return found;
}

TEST(NgramIndexTest, FindsWhatASearchFinds) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const uint32_t min_n = 1 + seed % 3;
    const uint32_t max_n = min_n + seed % 4;
    NgramIndex index({.min_n = min_n, .max_n = max_n});
    TokenIds text;
    for (int i = 0; i < 120; ++i) {
      text.push_back(static_cast<TokenId>(random() % 5));
      index.Append(text.back(), /*is_output=*/i > 20);
      const std::vector<NgramIndex::Context> contexts = index.Contexts();
      size_t at = 0;
      for (uint32_t n = max_n; n >= min_n; --n) {
        if (n > text.size()) continue;
        const std::vector<uint32_t> expected = Occurrences(text, n);
        if (expected.empty() || at == kMaxContexts) continue;
        ASSERT_LT(at, contexts.size());
        EXPECT_EQ(contexts[at].match_length, n);
        EXPECT_EQ(contexts[at].next, expected);
        ++at;
      }
      EXPECT_EQ(contexts.size(), at);
    }
  }
}

TEST(NgramIndexTest, CountsContinuationsAndFollowsThem) {
  NgramIndex index({.min_n = 2, .max_n = 2});
  for (TokenId token : {1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 6, 1, 2}) index.Append(token, /*is_output=*/false);
  ASSERT_EQ(index.Contexts().size(), 1u);
  const NgramIndex::Context context = index.Contexts()[0];
  EXPECT_THAT(index.Continuations(context), ElementsAre(Continuation{6, 1}, Continuation{3, 2}));
  const std::optional<NgramIndex::Context> after = index.After(context, 3);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->match_length, 3u);
  EXPECT_THAT(index.Continuations(*after), ElementsAre(Continuation{5, 1}, Continuation{4, 1}));
  EXPECT_FALSE(index.After(context, 4).has_value());
}

TEST(NgramIndexTest, ForgetsTheOlderHalfOfALongText) {
  NgramIndex index({.min_n = 2, .max_n = 3, .max_tokens = 64});
  for (TokenId token = 0; token < 64; ++token) index.Append(token, /*is_output=*/true);
  index.Append(10, /*is_output=*/true);
  index.Append(11, /*is_output=*/true);
  EXPECT_TRUE(index.Contexts().empty()) << "10 and 11 are in the half that went";
  index.Append(50, /*is_output=*/true);
  index.Append(51, /*is_output=*/true);
  ASSERT_EQ(index.Contexts().size(), 1u);
  EXPECT_THAT(index.Continuations(index.Contexts()[0]), ElementsAre(Continuation{52, 1}));
}

}  // namespace
}  // namespace tandem
