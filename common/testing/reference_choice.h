#pragma once

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"

namespace tandem {

// What an engine that chooses has to answer to `choice` where it computes `logits` [vocab_size], which are
// overwritten: TargetSampler's word, given tokens that stand as often as the counts say.
TokenId ReferenceAnswer(const SeededChoice& choice, absl::Span<float> logits);

}  // namespace tandem
