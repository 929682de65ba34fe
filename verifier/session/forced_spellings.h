#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"

namespace tandem {

// Remembers how the target has spelled bytes that constraints force. The bytes are given, but the target
// chooses how to cut them into tokens. A model may not choose the tokenizer's usual way, but it tends to
// choose the same way for the same bytes.
//
//   [ Learn(bytes that must come, the token that came) ... Likely(bytes) ]*
//
// Bounded: only the most recent texts are kept. Texts with different salts are independent. Not thread-safe.
class ForcedSpellings {
 public:
  struct Options {
    size_t max_texts = 4096;
    size_t max_text_bytes = 32;  // Bytes beyond these do not tell texts apart.
  };
  ForcedSpellings() : ForcedSpellings(Options{}) {}
  explicit ForcedSpellings(const Options& options) : options_(options) {}
  ForcedSpellings(const ForcedSpellings&) = delete;
  ForcedSpellings& operator=(const ForcedSpellings&) = delete;

  // Where the bytes `forced`, at least one, had to come, the target chose `token`.
  void Learn(uint64_t salt, absl::string_view forced, TokenId token);

  struct Guess {
    TokenId token = 0;
    float score = 0.0f;  // How often it was chosen, as a share below 1.
  };
  // The tokens with which `forced` has begun, most frequent first. Empty if it never came.
  std::vector<Guess> Likely(uint64_t salt, absl::string_view forced) const;

  size_t num_texts() const { return by_text_.size(); }

 private:
  // More are rarely worth a row.
  static constexpr size_t kTokens = 4;
  struct Count {
    TokenId token = 0;
    uint32_t times = 0;
  };
  struct Text {
    std::string key;
    std::array<Count, kTokens> counts;
    uint32_t total = 0;
  };

  std::string KeyOf(uint64_t salt, absl::string_view forced) const;

  const Options options_;
  std::list<Text> texts_;  // What came last first.
  absl::flat_hash_map<std::string, std::list<Text>::iterator> by_text_;
};

}  // namespace tandem
