#pragma once

#include "absl/strings/string_view.h"

namespace tandem {

// Tandem's version, such as "0.1.0".
absl::string_view Version();

}  // namespace tandem
