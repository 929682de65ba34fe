#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"
#include "common/tokenizer/json_view.h"

namespace tandem {

// The Unigram model of a tokenizer.json. Of all ways to cut a word into tokens, it takes the one with the
// greatest sum of scores, which are log probabilities (Kudo 2018, section 3.2). It uses the Viterbi
// algorithm, in time linear in the word's length times the longest token's. Sums have the order and precision
// of the Hugging Face library, so that ties have the same winner. Immutable, so thread-safe.
class UnigramModel {
 public:
  // Memory that is reused from word to word; one for each thread.
  class Scratch {
   private:
    friend class UnigramModel;
    // The best way to cut what lies before a byte: its last token, and where that begins.
    struct Node {
      double score;
      int64_t begin;  // -1: no way leads here
      TokenId token;
    };
    std::vector<Node> nodes_;
    std::vector<absl::string_view> pieces_;  // from the last to the first
  };

  // `json` is the member "model". InvalidArgument for duplicated or too many tokens and for an unk_id that is
  // none of them.
  static absl::StatusOr<UnigramModel> Parse(const JsonView& json);

  // Appends the tokens of `word`, which must be well-formed UTF-8. A run of characters that the vocabulary
  // lacks becomes byte tokens or one unknown token; FailedPrecondition without either. OutOfRange when `out`
  // would hold more than `max_tokens`, which shows at the word's end only: one token may stand for all of it.
  absl::Status Tokenize(absl::string_view word, size_t max_tokens, Scratch& scratch, TokenIds& out) const;

  std::optional<TokenId> Find(absl::string_view content) const;
  const absl::flat_hash_map<std::string, TokenId>& vocabulary() const { return vocabulary_; }

 private:
  UnigramModel() = default;
  void AddToTrie(absl::string_view content, TokenId token);
  absl::Status FindBestPath(absl::string_view word, Scratch& scratch) const;
  absl::Status AppendPiece(absl::string_view piece, TokenIds& out) const;

  absl::flat_hash_map<std::string, TokenId> vocabulary_;
  std::vector<double> scores_;
  // A trie: (node, byte) -> node, and the token that ends at a node or -1.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<TokenId> token_at_node_;
  std::optional<std::array<TokenId, 256>> byte_tokens_;  // -1 where the vocabulary lacks one
  std::optional<TokenId> unknown_;
  double unknown_score_ = 0;
};

}  // namespace tandem
