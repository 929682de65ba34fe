#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tandem {

// For tests: the number in the environment variable `name`, or `otherwise` where it is not set. If what is
// set is not a number, or less than `least`, the process prints what it expected and exits with status 2: it
// would not test what was asked.
uint64_t NumberFromEnvironment(absl::string_view name, uint64_t otherwise, uint64_t least = 0);

}  // namespace tandem
