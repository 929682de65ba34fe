#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/token_model.h"

namespace tandem {

// An entry of "added_tokens": text that is always one token, before any cutting and merging.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  std::string text;          // what is looked for: the content, normalized if `normalized`
  bool special = false;      // left out by skip_special, and not recognised without parse_special
  bool normalized = false;   // looked for after normalization, else before it
  bool strip_left = false;   // takes the white space before it along
  bool strip_right = false;  // takes the white space after it along
  bool single_word = false;  // only where it does not touch a word character
};

// Reads the array "added_tokens". Ids must be unique and agree with the model's vocabulary. `normalizer` may
// be null.
absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const JsonView& json, const TokenModel& model,
                                                         const Normalizer* normalizer);

// A stretch of text: an added token, or what lies between two of them.
struct TokenSpan {
  absl::string_view text;
  const AddedToken* token;  // null for plain text
};

// Finds a set of added tokens in text: leftmost first, and of those the longest. Immutable.
class AddedTokenFinder {
 public:
  // `tokens` must outlive the finder. Tokens with empty text are never found.
  explicit AddedTokenFinder(const std::vector<const AddedToken*>& tokens);

  // Cuts `text` (well-formed UTF-8) at the tokens, in order. Without `parse_special` special tokens are plain
  // text.
  std::vector<TokenSpan> Cut(absl::string_view text, bool parse_special) const;

 private:
  struct Match {
    size_t length = 0;
    const AddedToken* token = nullptr;
  };
  Match LongestAt(absl::string_view rest) const;

  std::array<bool, 256> first_bytes_{};
  // A trie: (node, byte) -> node, and the token that ends at a node.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<const AddedToken*> token_at_node_;
};

}  // namespace tandem
