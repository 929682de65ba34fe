#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/v1/types.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::cli {

// The options of `generate` and `chat` for the output's form.
struct ConstraintOptions {
  std::string json_schema_file;
  bool json_object = false;
  std::string regex;
  std::string grammar_file;
  std::vector<std::string> choices;
  bool any_whitespace = false;
};

void AddConstraint(CLI::App* app, ConstraintOptions* options);

// Reads the constraint's files and returns the constraint; nullopt if there is none. InvalidArgument names
// the wrong flag.
absl::StatusOr<std::optional<v1::Constraint>> ReadConstraint(const ConstraintOptions& options);

}  // namespace tandem::cli
