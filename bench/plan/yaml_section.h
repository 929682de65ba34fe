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

// A mapping of a plan file: reads its values by type and bounds. Each key must be known and occur once. An
// absent key leaves the variable unchanged. Errors are InvalidArgument: "FILE:LINE:COLUMN: KEY: found VALUE,
// expected ...". Refers to the path, which outlives it.
class YamlSection {
 public:
  // `name`: where it stands, such as "layout.verifiers"; empty for the whole file.
  static absl::StatusOr<YamlSection> Open(const YAML::Node& node, absl::string_view path, std::string name,
                                          std::vector<std::string> known);

  bool Has(absl::string_view key) const;
  absl::Status Read(absl::string_view key, double least, double most, double* value) const;
  absl::Status Read(absl::string_view key, uint32_t least, uint32_t most, uint32_t* value) const;
  absl::Status Read(absl::string_view key, uint64_t least, uint64_t most, uint64_t* value) const;
  absl::Status Read(absl::string_view key, bool* value) const;
  // Not empty.
  absl::Status Read(absl::string_view key, std::string* value) const;
  absl::Status Read(absl::string_view key, std::vector<std::string>* values) const;
  absl::Status Read(absl::string_view key, double least, double most, std::vector<double>* values) const;
  absl::Status Read(absl::string_view key, uint32_t least, uint32_t most,
                    std::vector<uint32_t>* values) const;

  // Nothing happens without the key.
  using OnNode = std::function<absl::Status(const YAML::Node& node, const std::string& name)>;
  absl::Status Visit(absl::string_view key, const OnNode& on_node) const;
  // Each entry of a list, under a name with its index.
  absl::Status VisitList(absl::string_view key, const OnNode& on_node) const;
  // Each key of a mapping with whatever keys, its value under its name.
  absl::Status VisitMap(absl::string_view key,
                        const std::function<absl::Status(const std::string& inner_key,
                                                         const YAML::Node& node)>& on_entry) const;

  // What is wrong with the value of a key, or with the section for its lack.
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

// "FILE:LINE:COLUMN: NAME: found VALUE, expected WHAT".
absl::Status UnexpectedYaml(absl::string_view path, const YAML::Node& node, absl::string_view name,
                            absl::string_view expected);

}  // namespace tandem::plan
