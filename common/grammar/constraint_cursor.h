#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/grammar/compiled.h"

namespace tandem {

// Moves in a tree of candidates below an output, and gives the constraint's state at each node. A move only
// rolls back and accepts the tokens in which the two paths differ.
//
//   [ MoveTo, FillMask, MoveTo, FillMask ... -> Commit ]*
//
// Not thread-safe.
class ConstraintCursor {
 public:
  // `state`: of the output so far.
  explicit ConstraintCursor(std::unique_ptr<ConstraintState> state) : state_(std::move(state)) {}

  // Moves to the node at the end of `path`, the tokens from the root's child down. False if one of them is
  // not allowed; then it stays at the last allowed node.
  bool MoveTo(absl::Span<const TokenId> path);
  // ConstraintState's FillMask, at the current node.
  void FillMask(absl::Span<uint32_t> mask) { state_->FillMask(mask); }
  std::string ForcedBytes() { return state_->ForcedBytes(); }
  bool gave_up() const { return state_->gave_up(); }
  uint64_t steps() const { return state_->steps(); }

  // Appends `token` to the output and makes it the root. False, without a change of the root, if it is not
  // allowed.
  bool Commit(TokenId token);

 private:
  const std::unique_ptr<ConstraintState> state_;
  TokenIds path_;  // Whose tokens the state has taken beyond the output.
};

}  // namespace tandem
