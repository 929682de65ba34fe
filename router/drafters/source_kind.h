#pragma once

#include "common/speculation/merged_tree.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// The source of a draft, as in statistics. A source that a verifier does not name counts as the drafter.
inline SourceKind KindOf(v1::DraftSource source) {
  switch (source) {
    case v1::DRAFT_SOURCE_LOCAL:
      return SourceKind::kLocal;
    case v1::DRAFT_SOURCE_GRAMMAR:
      return SourceKind::kGrammar;
    case v1::DRAFT_SOURCE_PREDICTION:
      return SourceKind::kPrediction;
    default:
      return SourceKind::kDrafter;
  }
}

}  // namespace tandem::router
