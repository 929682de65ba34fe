#include "verifier/session/forced_spellings.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// Counts are halved when there are so many, so that a change shows.
constexpr uint32_t kMostTimes = 64;
// What speaks against a guess from the start: one choice is no rule.
constexpr float kDoubt = 0.25f;

}  // namespace

std::string ForcedSpellings::KeyOf(uint64_t salt, absl::string_view forced) const {
  return absl::StrCat(absl::Hex(salt, absl::kZeroPad16), forced.substr(0, options_.max_text_bytes));
}

void ForcedSpellings::Learn(uint64_t salt, absl::string_view forced, TokenId token) {
  assert(!forced.empty());
  std::string key = KeyOf(salt, forced);
  const auto found = by_text_.find(key);
  if (found != by_text_.end()) {
    texts_.splice(texts_.begin(), texts_, found->second);
  } else {
    if (texts_.size() >= options_.max_texts) {
      by_text_.erase(texts_.back().key);
      texts_.pop_back();
    }
    texts_.push_front({.key = key, .counts = {}});
    by_text_.emplace(std::move(key), texts_.begin());
  }
  Text& text = texts_.front();
  if (text.total >= kMostTimes) {
    text.total = 0;
    for (Count& count : text.counts) text.total += count.times /= 2;
  }
  const auto same = std::find_if(text.counts.begin(), text.counts.end(), [token](const Count& count) {
    return count.times > 0 && count.token == token;
  });
  Count& count = same != text.counts.end()
                     ? *same
                     : *std::min_element(text.counts.begin(), text.counts.end(),
                                         [](const Count& a, const Count& b) { return a.times < b.times; });
  if (same == text.counts.end()) {
    text.total -= count.times;
    count = {.token = token, .times = 0};
  }
  ++count.times;
  ++text.total;
}

std::vector<ForcedSpellings::Guess> ForcedSpellings::Likely(uint64_t salt, absl::string_view forced) const {
  std::vector<Guess> guesses;
  const auto found = by_text_.find(KeyOf(salt, forced));
  if (found == by_text_.end()) return guesses;
  const Text& text = *found->second;
  for (const Count& count : text.counts) {
    if (count.times == 0) continue;
    guesses.push_back({.token = count.token,
                       .score = static_cast<float>(count.times) / (static_cast<float>(text.total) + kDoubt)});
  }
  std::stable_sort(guesses.begin(), guesses.end(),
                   [](const Guess& a, const Guess& b) { return a.score > b.score; });
  return guesses;
}

}  // namespace tandem
