#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "yaml-cpp/yaml.h"

namespace tandem::plan {

// A mapping of a plan file. Reads values with their type and their limits. Unknown and repeated keys are
// errors. If a key is absent, the variable keeps its value. Errors are InvalidArgument: "FILE:LINE:COLUMN:
// KEY: found VALUE, expected ...". The path outlives this.
class YamlSection {
 public:
  // `name`: where it is in the file, such as "layout.verifiers"; empty for the whole file.
  static absl::StatusOr<YamlSection> Open(const YAML::Node& node, absl::string_view path, std::string name,
                                          std::vector<std::string> known);

  bool Has(absl::string_view key) const;
  absl::Status Read(absl::string_view key, double least, double most, double* value) const;
  absl::Status Read(absl::string_view key, uint32_t least, uint32_t most, uint32_t* value) const;
  absl::Status Read(absl::string_view key, uint64_t least, uint64_t most, uint64_t* value) const;
  absl::Status Read(absl::string_view key, bool* value) const;
  // The string must not be empty.
  absl::Status Read(absl::string_view key, std::string* value) const;
  absl::Status Read(absl::string_view key, std::vector<std::string>* values) const;
  absl::Status Read(absl::string_view key, double least, double most, std::vector<double>* values) const;
  absl::Status Read(absl::string_view key, uint32_t least, uint32_t most,
                    std::vector<uint32_t>* values) const;

  // Calls `on_node` if the key is present.
  using OnNode = std::function<absl::Status(const YAML::Node& node, const std::string& name)>;
  absl::Status Visit(absl::string_view key, const OnNode& on_node) const;
  // Calls `on_node` for each entry of a list. The entry's name includes its index.
  absl::Status VisitList(absl::string_view key, const OnNode& on_node) const;
  // Calls `on_entry` for each key of a mapping with arbitrary keys.
  absl::Status VisitMap(absl::string_view key,
                        const std::function<absl::Status(const std::string& inner_key,
                                                         const YAML::Node& node)>& on_entry) const;

  // The error for a value that is wrong, or for a key that is missing.
  absl::Status Unexpected(absl::string_view key, absl::string_view expected) const;
  std::string NameOf(absl::string_view key) const;
  absl::string_view path() const { return path_; }

 private:
  YamlSection(YAML::Node node, absl::string_view path, std::string name)
      : node_(std::move(node)), path_(path), name_(std::move(name)) {}
  YAML::Node Find(absl::string_view key) const;
  absl::Status ReadNumber(absl::string_view key, const YAML::Node& value, double least, double most,
                          double* number) const;
  absl::Status ReadWhole(absl::string_view key, const YAML::Node& value, uint64_t least, uint64_t most,
                         uint64_t* number) const;

  YAML::Node node_;
  absl::string_view path_;
  std::string name_;
};

// The error "FILE:LINE:COLUMN: NAME: found VALUE, expected WHAT".
absl::Status UnexpectedYaml(absl::string_view path, const YAML::Node& node, absl::string_view name,
                            absl::string_view expected);

}  // namespace tandem::plan
