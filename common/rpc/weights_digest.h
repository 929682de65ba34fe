#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// SHA-256, 32 bytes, of what a model folder's outputs depend on: of the digests, one after the other, of
// config.json and of the weights' files as WeightFiles finds them, by file name. Reads every byte once.
// Errors are those of WeightFiles and of reading; Cancelled once `stopped`, which is asked every few
// milliseconds, says so.
absl::StatusOr<std::string> WeightsDigest(const std::string& folder,
                                          const std::function<bool()>& stopped = nullptr);

}  // namespace tandem
