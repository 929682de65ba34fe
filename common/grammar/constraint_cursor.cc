#include "common/grammar/constraint_cursor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem {

bool ConstraintCursor::MoveTo(absl::Span<const TokenId> path) {
  const size_t shorter = std::min(path_.size(), path.size());
  size_t common = 0;
  while (common < shorter && path_[common] == path[common]) ++common;
  state_->Rollback(static_cast<uint32_t>(path_.size() - common));
  path_.resize(common);
  for (const TokenId token : path.subspan(common)) {
    if (!state_->Accept(token)) return false;
    path_.push_back(token);
  }
  return true;
}

bool ConstraintCursor::Commit(TokenId token) {
  MoveTo({});
  if (!state_->Accept(token)) return false;
  state_->Settle();
  return true;
}

}  // namespace tandem
