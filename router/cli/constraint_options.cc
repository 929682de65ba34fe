#include "router/cli/constraint_options.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file.h"

namespace tandem::cli {
namespace {

// As much as a router takes.
constexpr size_t kMostBytes = size_t{1} << 20;

absl::StatusOr<std::string> Read(absl::string_view flag, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMostBytes);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", text.status().message()));
}

}  // namespace

void AddConstraint(CLI::App* app, ConstraintOptions* options) {
  const std::string group = "Structured output (one of these)";
  app->add_option("--json-schema", options->json_schema_file,
                  "The output is JSON that is valid for the schema in this file")
      ->group(group);
  app->add_flag("--json-object", options->json_object, "The output is a JSON object")->group(group);
  app->add_option("--regex", options->regex, "The whole output matches this regular expression")
      ->group(group);
  app->add_option("--grammar", options->grammar_file, "The output follows the EBNF grammar in this file")
      ->group(group);
  app->add_option("--choice", options->choices, "The output is this text; repeat for alternatives")
      ->allow_extra_args(false)
      ->group(group);
  app->add_flag("--any-whitespace", options->any_whitespace, "Let the target lay out the JSON")->group(group);
}

absl::StatusOr<std::optional<v1::Constraint>> ReadConstraint(const ConstraintOptions& options) {
  const bool is_json = !options.json_schema_file.empty() || options.json_object;
  const int given = (options.json_schema_file.empty() ? 0 : 1) + (options.json_object ? 1 : 0) +
                    (options.regex.empty() ? 0 : 1) + (options.grammar_file.empty() ? 0 : 1) +
                    (options.choices.empty() ? 0 : 1);
  if (given > 1) {
    return absl::InvalidArgumentError(
        "--json-schema, --json-object, --regex, --grammar, --choice: expected at most one of these");
  }
  if (options.any_whitespace && !is_json) {
    return absl::InvalidArgumentError("--any-whitespace: expected --json-schema or --json-object as well");
  }
  if (given == 0) return std::nullopt;
  v1::Constraint constraint;
  if (!options.json_schema_file.empty()) {
    absl::StatusOr<std::string> schema = Read("--json-schema", options.json_schema_file);
    if (!schema.ok()) return schema.status();
    constraint.mutable_json_schema()->set_schema(*std::move(schema));
    constraint.mutable_json_schema()->set_any_whitespace(options.any_whitespace);
  } else if (options.json_object) {
    constraint.mutable_json_object()->set_any_whitespace(options.any_whitespace);
  } else if (!options.regex.empty()) {
    constraint.set_regex(options.regex);
  } else if (!options.grammar_file.empty()) {
    absl::StatusOr<std::string> grammar = Read("--grammar", options.grammar_file);
    if (!grammar.ok()) return grammar.status();
    constraint.set_grammar(*std::move(grammar));
  } else {
    for (const std::string& choice : options.choices) constraint.mutable_choices()->add_choices(choice);
  }
  return constraint;
}

}  // namespace tandem::cli
