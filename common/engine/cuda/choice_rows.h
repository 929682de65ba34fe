#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/cuda/kernels/choice_kernels.h"
#include "common/speculation/sampling_parameters.h"

namespace tandem {

// Appends what ChoiceKernel needs to choose the token at `position` as TargetSampler does: valid `sampling`,
// and the tokens before (for a tree's node, the output ends with the path to it).
void AppendChoiceRow(const SamplingParameters& sampling, absl::Span<const TokenId> prompt,
                     absl::Span<const TokenId> output, uint32_t position, std::vector<ChoiceRow>* rows,
                     std::vector<ChoiceEntry>* entries);

}  // namespace tandem
