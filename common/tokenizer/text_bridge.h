#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// Translates between two vocabularies through the text of their tokens, so that a draft model can draft for a
// target with another vocabulary (docs/operate/drafters.md). Losses in translation only lower acceptance.
// Immutable, so thread-safe.
class TextBridge {
 public:
  TextBridge(std::shared_ptr<const Tokenizer> draft, std::shared_ptr<const Tokenizer> target,
             int32_t target_width);

  const Tokenizer& draft() const { return *draft_; }
  const Tokenizer& target() const { return *target_; }
  int32_t target_width() const { return target_width_; }

  // The tokens that the draft model's tokenizer puts in front of a text.
  const TokenIds& frame() const { return frame_; }
  // The other side's special token with the same content, or with the same role of beginning or ending texts.
  std::optional<TokenId> SpecialToDraft(TokenId target) const;
  std::optional<TokenId> SpecialToTarget(TokenId draft) const;

  struct PlacedToken {
    TokenId token = 0;
    size_t end = 0;  // Bytes of the text up to its end.
  };
  // The target's tokens of `text`, which follows the tokens `before`; empty if no tokens make exactly that
  // text.
  std::vector<PlacedToken> ToTarget(absl::Span<const TokenId> before, absl::string_view text) const;

 private:
  std::shared_ptr<const Tokenizer> draft_;
  std::shared_ptr<const Tokenizer> target_;
  int32_t target_width_;
  TokenIds frame_;
  absl::flat_hash_map<TokenId, TokenId> to_draft_;  // Of special tokens.
  absl::flat_hash_map<TokenId, TokenId> to_target_;
};

// A growing text of the target in the draft model's tokens. Earlier tokens change only near the end, where
// new text may extend the last words. Not thread-safe.
class TranslatedText {
 public:
  // `bridge` outlives it.
  explicit TranslatedText(const TextBridge* bridge);

  void Append(absl::Span<const TokenId> target_tokens);
  // The draft model's tokens; at least one.
  const TokenIds& tokens() const { return tokens_; }
  // The text's last bytes: the beginning of an incomplete character, which has no token yet.
  absl::string_view pending() const { return absl::string_view(run_).substr(covered_); }
  // The mean number of the draft model's tokens per target token so far.
  double tokens_per_token() const;

 private:
  void DropInvalid();
  void Retokenize();
  void EndRun();
  void AddSpecial(TokenId target);

  const TextBridge& bridge_;
  TokenIds tokens_;
  // The text after the last special token; tokens_[run_begin_ + i] ends at byte ends_[i].
  std::string run_;
  size_t run_begin_ = 0;
  std::vector<size_t> ends_;
  size_t covered_ = 0;  // Bytes of run_ that have tokens.
  uint64_t num_target_ = 0;
};

// The length of `bytes` without an incomplete character at the end.
size_t WholeCharacters(absl::string_view bytes);

}  // namespace tandem
