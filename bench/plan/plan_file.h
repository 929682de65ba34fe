#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/plan/plan.h"

namespace tandem::plan {

// Bounds on a plan's files.
inline constexpr size_t kMaxPlanInputBytes = size_t{512} << 20;
inline constexpr size_t kMostRecordedRequests = 20'000'000;

// Reads the file that a plan names.
using ReadInput = std::function<absl::StatusOr<std::string>(const std::string& name)>;

// Parses a plan from YAML (docs/operate/planning.md has every key). `path` is for messages; `read` reads the
// files that the plan names. InvalidArgument as "FILE:LINE:COLUMN: KEY: found VALUE, expected WHAT", also for
// the files that it names, with their own names.
absl::StatusOr<Plan> ParsePlan(absl::string_view yaml, absl::string_view path, const ReadInput& read);

// Reads a plan and the files that it names. Relative names are relative to the plan's folder.
absl::StatusOr<Plan> LoadPlan(const std::string& path);

// Parses a recorded day: one JSON object per line, in order of time,
//
//   {"at": 12.5, "tenant": "acme", "kind": "code", "prompt_tokens": 210, "output_tokens": 96}
//
// The traffic must have the tenants; kinds that it does not have are added to it. Errors name file and line.
absl::Status ParseRecordedDay(absl::string_view lines, absl::string_view path, Traffic* traffic);

}  // namespace tandem::plan
