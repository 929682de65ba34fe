#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/config/model_config.h"
#include "common/speculation/sampling_parameters.h"
#include "tandem/v1/types.pb.h"

namespace tandem {

// Absent fields take the model's `defaults`, otherwise the value documented in the proto. Logit bias, allowed
// and banned tokens are sorted by token id. An absent seed becomes 0, so draw one before if needed.
// InvalidArgument if the logit bias has more than 1,024 entries, the others more than 4,096, or any has a
// token id of 2^31 or above; values are not checked.
absl::StatusOr<SamplingParameters> DecodeSampling(const v1::SamplingParameters& proto,
                                                  const GenerationDefaults& defaults);

// DecodeSampling, then Validate for a model with `vocab_size` logits.
absl::StatusOr<SamplingParameters> SamplingFromProto(const v1::SamplingParameters& proto,
                                                     const GenerationDefaults& defaults, int32_t vocab_size);

// Sets every field, so that the receiver applies no defaults of its own.
v1::SamplingParameters SamplingToProto(const SamplingParameters& sampling);

}  // namespace tandem
