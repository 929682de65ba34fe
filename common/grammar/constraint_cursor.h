#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/grammar/compiled.h"

namespace tandem {

// Goes about a tree of candidates below an output, and knows at each node what its constraint allows there:
// from one node to another only the tokens in which their paths differ are taken back and accepted.
//
//   [ MoveTo, FillMask, MoveTo, FillMask ... -> Commit ]*
//
// Not thread-safe.
class ConstraintCursor {
 public:
  // `state`: where the output stands.
  explicit ConstraintCursor(std::unique_ptr<ConstraintState> state) : state_(std::move(state)) {}

  // Goes to the node at the end of `path`, tokens from the root's child down. False, and it stays at the last
  // node above that may come, if one of the tokens may not.
  bool MoveTo(absl::Span<const TokenId> path);
  // Of the node where it is: ConstraintState's.
  void FillMask(absl::Span<uint32_t> mask) { state_->FillMask(mask); }
  std::string ForcedBytes() { return state_->ForcedBytes(); }

  // The output goes on with `token`, and that is the root. False, and the root stays, if it may not.
  bool Commit(TokenId token);

 private:
  const std::unique_ptr<ConstraintState> state_;
  TokenIds path_;  // Whose tokens the state has taken beyond the output.
};

}  // namespace tandem
