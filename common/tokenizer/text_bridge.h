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

// Between two vocabularies that have nothing in common but the text that their tokens make: for a draft model
// that drafts for a target of another vocabulary (docs/operate/drafters.md). Whatever is lost on the way
// costs acceptance alone. Immutable, and safe to share between threads.
class TextBridge {
 public:
  TextBridge(std::shared_ptr<const Tokenizer> draft, std::shared_ptr<const Tokenizer> target,
             int32_t target_width);

  const Tokenizer& draft() const { return *draft_; }
  const Tokenizer& target() const { return *target_; }
  int32_t target_width() const { return target_width_; }

  // What the draft model's tokenizer puts in front of a text.
  const TokenIds& frame() const { return frame_; }
  // The special token of the other side that has the same content, or begins or ends texts as this one does.
  std::optional<TokenId> SpecialToDraft(TokenId target) const;
  std::optional<TokenId> SpecialToTarget(TokenId draft) const;

  struct PlacedToken {
    TokenId token = 0;
    size_t end = 0;  // Bytes of the text up to its end.
  };
  // The target's tokens of `text`, which goes on behind the tokens `before`; none where no tokens make
  // exactly that text.
  std::vector<PlacedToken> ToTarget(absl::Span<const TokenId> before, absl::string_view text) const;

 private:
  std::shared_ptr<const Tokenizer> draft_;
  std::shared_ptr<const Tokenizer> target_;
  int32_t target_width_;
  TokenIds frame_;
  absl::flat_hash_map<TokenId, TokenId> to_draft_;  // Of special tokens.
  absl::flat_hash_map<TokenId, TokenId> to_target_;
};

// A target's text in the draft model's tokens, as it grows. What has been translated changes only near the
// end, where further text may be part of the last words. Not thread-safe.
class TranslatedText {
 public:
  // `bridge` outlives it.
  explicit TranslatedText(const TextBridge* bridge);

  void Append(absl::Span<const TokenId> target_tokens);
  // The draft model's; at least one.
  const TokenIds& tokens() const { return tokens_; }
  // The text's last bytes, which begin a character that is not whole yet and have no token.
  absl::string_view pending() const { return absl::string_view(run_).substr(covered_); }
  // How many of the draft model's tokens a token of the target's takes, as far as is known.
  double tokens_per_token() const;

 private:
  void DropInvalid();
  void Retokenize();
  void EndRun();
  void AddSpecial(TokenId target);

  const TextBridge& bridge_;
  TokenIds tokens_;
  // The text behind the last special token: of tokens_[run_begin_ + i], the bytes up to its end are ends_[i].
  std::string run_;
  size_t run_begin_ = 0;
  std::vector<size_t> ends_;
  size_t covered_ = 0;  // Bytes of run_ that have tokens.
  uint64_t num_target_ = 0;
};

// Of `bytes`, how many are left when a character that is not whole is cut off the end.
size_t WholeCharacters(absl::string_view bytes);

}  // namespace tandem
