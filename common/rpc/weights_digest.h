#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// SHA-256, 32 bytes, of the weights of a model folder as WeightFiles finds them: of model.safetensors, or, of
// a model in shards, of the shards' own digests one after the other, by file name. Reads every byte once.
// Errors are those of WeightFiles and of reading; Cancelled once `stopped`, which is asked every few
// milliseconds, says so.
absl::StatusOr<std::string> WeightsDigest(const std::string& folder,
                                          const std::function<bool()>& stopped = nullptr);

}  // namespace tandem
