#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/candidate_tree.h"
#include "common/speculation/draft_messages.h"
#include "common/tokenizer/text_bridge.h"

namespace tandem {

// Drafting by text of one session: translates between a verifier's messages, which use the target's tokens,
// and a DraftSession that drafts in the draft model's own vocabulary.
//
//   Open    -> the text so far in the draft model's tokens -> the DraftSession's Open
//   Commit  -> as much more text -> its Commit; its Open, where the last tokens have become others
//   growth <-  the target's tokens of the text on each path <- its growth
//
// The DraftSession guesses its most likely tokens, because the target's noise is drawn for tokens that it
// does not have. Of a path, only tokens that more text cannot change are sent: those up to its last word, and
// all once the DraftSession is done. Each side has its own ids, epochs and commit numbers.
//
// Protocol logic without I/O; belongs to the thread that owns the engine.
class TextTranslation {
 public:
  // `bridge` outlives it. `context_length`: of the draft model.
  TextTranslation(const TextBridge* bridge, uint32_t context_length)
      : bridge_(*bridge), context_length_(context_length) {}

  const TextBridge* bridge() const { return &bridge_; }
  uint32_t epoch() const { return epoch_; }

  // The message must be checked.
  OpenSession Open(const OpenSession& open);
  // The message for the DraftSession, if any. Errors are those of DraftSession::OnCommit.
  using Told = std::variant<std::monostate, Commit, OpenSession>;
  absl::StatusOr<Told> OnCommit(const Commit& commit);
  // The messages for the verifier about the DraftSession's growth.
  std::vector<Grow> OnGrowth(absl::Span<const Grow> growth);

 private:
  // The text of a path in the DraftSession's tree.
  struct PathText {
    std::string text;  // From the end of the translated text.
    bool ended = false;
    std::optional<TokenId> end_token;  // The target's that ends it.
  };

  absl::Status CheckCommit(const Commit& commit) const;
  void SetBudget(const DraftBudget& budget);
  DraftBudget InnerBudget() const;
  OpenSession InnerOpen();
  void Move(const Commit& commit);
  bool Follow(const Grow& grow);
  PathText TextOf(NodeId parent, TokenId token) const;
  void Announce(NodeId leaf, bool is_final);
  float ScoreUpTo(absl::Span<const NodeId> path, size_t end) const;
  NodeId AddNode(NodeId parent, TokenId token, float score);
  std::vector<Grow> TakeMessages(bool exhausted);

  const TextBridge& bridge_;
  const uint32_t context_length_;

  // The verifier's side.
  OpenSession opened_;  // Without its tokens.
  uint32_t epoch_ = 0;
  uint32_t commit_no_ = 0;
  uint64_t prefix_hash_ = 0;
  uint32_t committed_len_ = 0;
  bool lost_ = false;
  bool said_exhausted_ = false;
  DraftBudget budget_;
  uint32_t max_depth_ = 0;
  uint32_t max_nodes_ = 0;
  TokenIds last_tokens_;  // The last of the committed ones.
  CandidateTree tree_;
  NodeId next_id_ = 1;
  std::vector<TreeNode> announced_;

  // The DraftSession's.
  std::optional<TranslatedText> text_;
  uint32_t inner_epoch_ = 0;
  uint32_t inner_commit_no_ = 0;
  TokenIds inner_tokens_;
  CandidateTree inner_tree_;
  absl::flat_hash_map<NodeId, PathText> texts_;
};

}  // namespace tandem
