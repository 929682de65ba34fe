#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/plan/plan.h"

namespace tandem::plan {

// Bounds on what is read.
inline constexpr size_t kMaxPlanInputBytes = size_t{512} << 20;
inline constexpr size_t kMostRecordedRequests = 20'000'000;

// Reads the file of a name that a plan has.
using ReadInput = std::function<absl::StatusOr<std::string>(const std::string& name)>;

// A plan from YAML (docs/operate/planning.md has every key). `path` stands in messages; `read` gets the files
// that the plan names. InvalidArgument as "FILE:LINE:COLUMN: KEY: found VALUE, expected WHAT", and of the
// files it names by their own names.
absl::StatusOr<Plan> ParsePlan(absl::string_view yaml, absl::string_view path, const ReadInput& read);

// Reads a plan and the files that it names, which stand beside it unless they have a whole path.
absl::StatusOr<Plan> LoadPlan(const std::string& path);

// A recorded day: one JSON object a line, in order of time,
//
//   {"at": 12.5, "tenant": "acme", "kind": "code", "prompt_tokens": 210, "output_tokens": 96}
//
// with tenants that the traffic has; kinds that it has not are added to it. Errors name file and line.
absl::Status ParseRecordedDay(absl::string_view lines, absl::string_view path, Traffic* traffic);

}  // namespace tandem::plan
