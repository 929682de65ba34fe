#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/speculation/policies/window_policy_options.h"

namespace tandem {

// The window policy of requests that name none, and the options of all policies.
struct WindowPolicyFile {
  std::string policy;  // Empty: the file does not say.
  WindowPolicyOptions options;
};

// Reads options of window policies from JSON: an object with an object per policy, by its name, and the
// default policy's name as "policy"; what is left out keeps its default. docs/reference/policies.md lists the
// keys.
//
//   {"policy": "analytic", "analytic": {"history": 8}, "ema-tiers": {"candidate_steps": [1, 3, 7]}}
//
// A file for SGLang's --speculative-adaptive-config, with the keys of "ema-tiers" at the top level, is
// accepted too.
//
// `path`: for messages. InvalidArgument names the path, the field, what was found and what was expected. An
// unknown key is an error.
absl::StatusOr<WindowPolicyFile> ParseWindowPolicyFile(absl::string_view json, absl::string_view path);

}  // namespace tandem
