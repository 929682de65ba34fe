#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_builtins.h"

namespace tandem {

// The arguments that a filter, a test or a method takes.
struct JinjaSignature {
  std::vector<absl::string_view> parameters = {};
  size_t required = 0;           // How many of these, from the first.
  bool takes_any = false;        // Further ones, and of any name.
  bool positional_only = false;  // None of them by name.
};

// The filters and tests that there are; null for other names. A template that uses another one is refused
// when it is loaded.
const JinjaSignature* FindJinjaFilter(absl::string_view name);
const JinjaSignature* FindJinjaTest(absl::string_view name);

// What Jinja or Python has and this engine does not: functions and methods. A template that uses one is
// refused when it is loaded.
bool IsUnsupportedJinjaFunction(absl::string_view name);
bool IsUnsupportedPythonMethod(absl::string_view name);

// Whether a call with so many positional arguments and these named ones fits. `what` begins the error, such
// as "filter 'trim'".
absl::Status CheckJinjaCall(const JinjaSignature& signature, absl::string_view what, size_t num_positional,
                            const std::vector<absl::string_view>& named);
absl::Status CheckJinjaCall(const JinjaSignature& signature, absl::string_view what,
                            const JinjaArguments& arguments);

}  // namespace tandem
