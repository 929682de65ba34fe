#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// A regular expression with the same texts that XGrammar reads as others do: `.` takes no line end, and an
// escaped punctuation mark may begin or end a range of a class.
std::string PlainRegex(absl::string_view pattern);

}  // namespace tandem
