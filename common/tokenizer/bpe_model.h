#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"
#include "common/tokenizer/json_view.h"

namespace tandem {

// Ids at or above this are refused. No model has such a vocabulary, and tables are as long as the highest id.
inline constexpr TokenId kMaxTokenId = (TokenId{1} << 24) - 1;

// The byte-pair-encoding model of a tokenizer.json. It splits a word into its characters and merges the
// neighbours of lowest rank, leftmost first, until no merge applies. A priority queue makes this O(n log n)
// in the word's length. Immutable, so thread-safe.
class BpeModel {
 public:
  // Memory that is reused from word to word; one for each thread.
  class Scratch {
   private:
    friend class BpeModel;
    // A token of the word being merged, in a doubly linked list by index; absorbed ones have token kAbsorbed.
    struct Symbol {
      TokenId token;
      int32_t previous;
      int32_t next;
    };
    // A possible merge of the symbol at `position` with the one after it.
    struct Candidate {
      uint64_t order;  // rank, then position
      TokenId merged;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;
  };

  // `json` is the member "model", or what ReadGgufTokenizer makes of a file: an array of "contents", by id,
  // in place of "vocab", and "merge_ids" in place of "merges". Duplicated or too large ids, merges of unknown
  // tokens and the like are InvalidArgument; dropout is Unimplemented.
  static absl::StatusOr<BpeModel> Parse(const JsonView& json);

  // Appends the tokens of `word`, which must be well-formed UTF-8 of at most 2^31 - 1 bytes. Characters that
  // the vocabulary lacks become byte tokens, the unknown token or, without either, nothing. OutOfRange when
  // `out` would hold more than `max_tokens`: a word that is too long for that is not merged.
  absl::Status Tokenize(absl::string_view word, size_t max_tokens, Scratch& scratch, TokenIds& out) const;

  std::optional<TokenId> Find(absl::string_view content) const;
  const absl::flat_hash_map<std::string, TokenId>& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;
    TokenId merged;
  };
  static constexpr uint32_t kNumDirectCharacters = 0x400;

  BpeModel() = default;
  absl::Status ParseVocabulary(const JsonView& json);
  absl::Status ParseContents(const JsonView& json);
  absl::Status ParseIds(const JsonView& json);
  absl::Status ParseAffixes(const JsonView& json);
  absl::Status ParseMerges(const JsonView& json);
  absl::Status ParseMergeIds(const JsonView& json);
  absl::Status ParseOptions(const JsonView& json);
  const Merge* FindMerge(TokenId left, TokenId right) const;
  std::optional<TokenId> FindCharacter(absl::string_view character, uint32_t code_point) const;
  bool AddByteTokens(absl::string_view character, Scratch& scratch) const;
  // OutOfRange for more than `max_symbols`.
  absl::Status SplitCharacters(absl::string_view word, size_t max_symbols, Scratch& scratch) const;
  // How many symbols a word may have at the start so that it has at most `num_tokens` tokens.
  size_t MostSymbols(size_t num_tokens) const;
  void Enqueue(int32_t position, Scratch& scratch) const;
  void MergeSymbols(Scratch& scratch) const;

  absl::flat_hash_map<std::string, TokenId> vocabulary_;
  absl::flat_hash_map<std::pair<TokenId, TokenId>, Merge> merges_;
  // The tokens of the first characters of Unicode, found without hashing; -1 where there is none.
  std::array<TokenId, kNumDirectCharacters> direct_characters_{};
  std::optional<std::array<TokenId, 256>> byte_tokens_;  // -1 where the vocabulary lacks one
  // Characters of the longest token that merging makes. Each symbol has at least one character.
  size_t longest_merged_ = 1;
  // The prefix of a word's characters except the first, and the suffix of its last one, for looking them up.
  std::string continuing_prefix_;
  std::string end_suffix_;
  std::optional<std::string> unknown_content_;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace tandem
