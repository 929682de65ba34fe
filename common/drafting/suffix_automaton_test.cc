#include "common/drafting/suffix_automaton.h"

#include <algorithm>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::UnorderedElementsAreArray;

TokenIds RandomText(std::mt19937& random, size_t length, uint32_t num_tokens) {
  TokenIds text;
  for (size_t i = 0; i < length; ++i) text.push_back(static_cast<TokenId>(random() % num_tokens));
  return text;
}

// How often each token follows `context` in `text`.
std::vector<Continuation> CountContinuations(const TokenIds& text, absl::Span<const TokenId> context) {
  std::map<TokenId, uint32_t> counts;
  for (size_t end = context.size(); end < text.size(); ++end) {
    if (absl::MakeConstSpan(text).subspan(end - context.size(), context.size()) == context) {
      ++counts[text[end]];
    }
  }
  std::vector<Continuation> continuations;
  for (const auto& [token, count] : counts) continuations.push_back({token, count});
  return continuations;
}

size_t LongestRepeatedSuffix(const TokenIds& text) {
  for (size_t length = text.size(); length-- > 1;) {
    if (!CountContinuations(text, absl::MakeConstSpan(text).last(length)).empty()) return length;
  }
  return 0;
}

TEST(SuffixAutomatonTest, FindsAndCountsWhatASearchFinds) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    // So short that no text has more nested suffixes than are counted.
    const TokenIds text = RandomText(random, SuffixAutomaton::kMaxCounted, 2 + seed % 4);
    SuffixAutomaton automaton;
    TokenIds so_far;
    for (TokenId token : text) {
      automaton.Append(token);
      so_far.push_back(token);
      SuffixAutomaton::StateId state = automaton.LongestRepeatedSuffix();
      ASSERT_EQ(automaton.Length(state), LongestRepeatedSuffix(so_far)) << so_far.size();
      for (; state != SuffixAutomaton::kRoot; state = automaton.Link(state)) {
        const auto suffix = absl::MakeConstSpan(so_far).last(automaton.Length(state));
        ASSERT_THAT(automaton.Continuations(state),
                    UnorderedElementsAreArray(CountContinuations(so_far, suffix)));
      }
    }
  }
}

TEST(SuffixAutomatonTest, LongTextsStayLinearAndLongestMatchesExact) {
  for (uint32_t num_tokens : {1u, 2u, 30u}) {
    std::mt19937 random(num_tokens);
    const TokenIds text = RandomText(random, 20000, num_tokens);
    SuffixAutomaton automaton;
    for (TokenId token : text) automaton.Append(token);
    EXPECT_LE(automaton.num_states(), 2 * text.size());
    EXPECT_LE(automaton.num_edges(), 3 * text.size());
    // Every step from the root along the text's end is known, and leads no further than the text.
    std::optional<SuffixAutomaton::StateId> state = SuffixAutomaton::kRoot;
    for (TokenId token : absl::MakeConstSpan(text).last(100)) {
      state = automaton.After(*state, token);
      ASSERT_TRUE(state.has_value());
    }
  }
}

TEST(SuffixAutomatonTest, ListsABoundedNumberOfContinuations) {
  SuffixAutomaton automaton;
  for (TokenId token = 1; token < 500; ++token) {
    automaton.Append(0);
    automaton.Append(token);
  }
  automaton.Append(0);
  EXPECT_EQ(automaton.Continuations(automaton.LongestRepeatedSuffix()).size(), kMaxContinuations);
}

TEST(SuffixIndexTest, ForgetsTheOlderHalfOfALongText) {
  SuffixIndex index({.min_length = 2, .max_tokens = 64});
  size_t most_states = 0;
  for (int i = 0; i < 1000; ++i) {
    index.Append(i % 40, /*is_output=*/true);
    most_states = std::max(most_states, index.automaton().num_states());
    // What repeats every 40 tokens is found as long as one period lies within what is kept.
  }
  EXPECT_LE(most_states, 2 * 64u);
  for (int i = 0; i < 30; ++i) index.Append(1000 + i, /*is_output=*/true);
  index.Append(1000, /*is_output=*/true);
  index.Append(1001, /*is_output=*/true);
  ASSERT_EQ(index.Contexts().size(), 1u);
  EXPECT_EQ(index.Contexts()[0].match_length, 2u);
  EXPECT_EQ(index.Continuations(index.Contexts()[0]), (std::vector<Continuation>{{1002, 1}}));
}

TEST(SuffixIndexTest, IgnoresMatchesThatAreTooShort) {
  for (uint32_t least : {1u, 2u, 3u}) {
    SuffixIndex index({.min_length = least});
    for (TokenId token : {1, 2, 3, 9, 1, 2}) index.Append(token, /*is_output=*/false);
    EXPECT_EQ(index.Contexts().size(), least <= 2 ? 1u : 0u);
  }
}

}  // namespace
}  // namespace tandem
