#pragma once

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"

namespace tandem {

// The right answer of an engine to `choice`, given its `logits` [vocab_size], which are overwritten: the
// token that TargetSampler chooses if tokens occur as often as the counts say.
TokenId ReferenceAnswer(const SeededChoice& choice, absl::Span<float> logits);

}  // namespace tandem
