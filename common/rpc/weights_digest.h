#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The SHA-256 digest, 32 bytes, of the files on which a model folder's outputs depend: the hash of the
// concatenated digests of config.json and of the weight files that WeightFiles finds, by file name. Reads
// every byte once. Errors of WeightFiles and of reading; Cancelled if `stopped`, which is called every few
// milliseconds, returns true.
absl::StatusOr<std::string> WeightsDigest(const std::string& folder,
                                          const std::function<bool()>& stopped = nullptr);

}  // namespace tandem
