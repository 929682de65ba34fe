#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// Maps a draft model's token ids to a target's and back, if the tokens of both mean the same but are numbered
// or padded differently (docs/operate/drafters.md). Two tokens are the same if they have the same content in
// tokenizer.json and stand for the same bytes. Immutable, so thread-safe.
//
// If the draft model does not have a token of the target, it sees the stand-in, its end-of-text token. A
// token that the target does not have is never drafted.
class VocabularyBridge {
 public:
  // What the draft model or the target takes for its tokens.
  struct Side {
    const Tokenizer& tokenizer;
    int32_t width;  // Of its logits.
  };
  // In tokens.
  struct Difference {
    uint32_t moved = 0;  // Both have them, under other ids.
    uint32_t target_only = 0;
    uint32_t draft_only = 0;
  };

  // FailedPrecondition, with counts and the first token that differs, when the sides differ in more than
  // padding, the ids of tokens and added tokens.
  static absl::StatusOr<VocabularyBridge> Between(const Side& draft, const Side& target);

  // From each of the target's ids to the draft model's, or kNone. InvalidArgument for ids outside of
  // [0, draft_width) and for one that stands for two tokens of the target.
  static constexpr TokenId kNone = -1;
  static absl::StatusOr<VocabularyBridge> FromMap(std::vector<TokenId> draft_ids, int32_t draft_width,
                                                  TokenId stand_in);

  int32_t draft_width() const { return draft_width_; }
  int32_t target_width() const { return static_cast<int32_t>(draft_ids_.size()); }
  TokenId stand_in() const { return stand_in_; }
  const Difference& difference() const { return difference_; }
  // Such as "3 tokens under other ids, 2 of the target's that the draft model has not, ...".
  std::string Describe() const;

  // Whether the draft model has the token, which is in [0, target_width).
  bool HasDraft(TokenId token) const { return draft_ids_[static_cast<size_t>(token)] != kNone; }
  // For what it reads: the id of the token, or the stand-in.
  TokenId ToDraft(TokenId token) const {
    const TokenId id = draft_ids_[static_cast<size_t>(token)];
    return id == kNone ? stand_in_ : id;
  }
  // For what it says: the target's tokens get the logits that the draft model [draft_width] gave them, and
  // -infinity where it gave none. [target_width]
  void ToTarget(absl::Span<const float> draft_logits, absl::Span<float> target_logits) const;

 private:
  // Ids that follow one another on both sides.
  struct Run {
    size_t target = 0;
    size_t draft = 0;
    size_t length = 0;
  };

  VocabularyBridge() = default;

  int32_t draft_width_ = 0;
  TokenId stand_in_ = 0;
  std::vector<TokenId> draft_ids_;
  std::vector<Run> runs_;  // By the target's id.
  Difference difference_;
};

}  // namespace tandem
