#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/plan/plan.h"

namespace tandem::plan {

// Limits on the input.
inline constexpr size_t kMaxPlanInputBytes = size_t{512} << 20;
inline constexpr size_t kMostRecordedRequests = 20'000'000;

// Reads a file that a plan names.
using ReadInput = std::function<absl::StatusOr<std::string>(const std::string& name)>;

// Reads a plan from YAML (docs/operate/planning.md lists every key). `path` is for messages; `read` reads the
// files that the plan names. InvalidArgument: "FILE:LINE:COLUMN: KEY: found VALUE, expected WHAT"; an error
// in another file names that file.
absl::StatusOr<Plan> ParsePlan(absl::string_view yaml, absl::string_view path, const ReadInput& read);

// Reads a plan and the files that it names. Relative paths start at the plan's folder.
absl::StatusOr<Plan> LoadPlan(const std::string& path);

// Reads a recorded day: one JSON object per line, in order of time,
//
//   {"at": 12.5, "tenant": "acme", "kind": "code", "prompt_tokens": 210, "output_tokens": 96}
//
// The tenants must be the traffic's. Adds kinds that the traffic does not have. Errors name the file and the
// line.
absl::Status ParseRecordedDay(absl::string_view lines, absl::string_view path, Traffic* traffic);

}  // namespace tandem::plan
