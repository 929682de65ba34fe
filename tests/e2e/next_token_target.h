#pragma once

#include <string>

#include "common/base/temporary_folder.h"

namespace tandem::e2e {

// A folder with a target's files and an untrained next-token module: the target's first layer over the next
// token's embedding and a little of the target's state, then the target's final norm. Its guess is the
// target's choice in every fifth case.
class NextTokenTarget {
 public:
  // The target's files are linked to, not copied. It has to be one of a single model.safetensors in bfloat16.
  explicit NextTokenTarget(const std::string& target_folder);

  const std::string& folder() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_;
};

}  // namespace tandem::e2e
