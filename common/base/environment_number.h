#pragma once

#include <cstdint>
#include <limits>

#include "absl/strings/string_view.h"

namespace tandem {

// For tests: the whole number in the environment variable `name`, or `otherwise` where it is not set. If what
// is set is no number from `least` to `most`, the process prints what it expected and exits with status 2,
// since it would not test what was asked.
uint64_t NumberFromEnvironment(absl::string_view name, uint64_t otherwise, uint64_t least = 0,
                               uint64_t most = std::numeric_limits<uint64_t>::max());

}  // namespace tandem
