#include "bench/plan/yaml_section.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/config/yaml_document.h"
#include "common/model/config/strict_json.h"

namespace tandem::plan {
namespace {

// The most entries of one list or mapping.
constexpr size_t kMostEntries = 10'000;

std::string Shown(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return absl::StrCat("\"", PrintableText(node.Scalar()), "\"");
    case YAML::NodeType::Sequence:
      return absl::StrCat("a list of ", node.size());
    case YAML::NodeType::Map:
      return absl::StrCat("a mapping of ", node.size());
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      break;
  }
  return "nothing";
}

}  // namespace

absl::Status UnexpectedYaml(absl::string_view path, const YAML::Node& node, absl::string_view name,
                            absl::string_view expected) {
  return YamlError(path, node,
                   absl::StrCat(name.empty() ? "" : absl::StrCat(name, ": "), "found ", Shown(node),
                                ", expected ", expected));
}

absl::StatusOr<YamlSection> YamlSection::Open(const YAML::Node& node, absl::string_view path,
                                              std::string name, std::vector<std::string> known) {
  YamlSection section(node, path, std::move(name));
  if (!node.IsMap() || node.size() > kMostEntries) {
    return UnexpectedYaml(path, node, section.name_,
                          absl::StrCat("a mapping with keys among ", absl::StrJoin(known, ", ")));
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) return UnexpectedYaml(path, entry.first, section.name_, "a key");
    const std::string& key = entry.first.Scalar();
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return YamlError(
          path, entry.first,
          absl::StrCat(section.NameOf(PrintableText(key)), " is not known", DidYouMean(key, known),
                       ", expected one of ", absl::StrJoin(known, ", ")));
    }
    if (!seen.insert(key).second) {
      return YamlError(path, entry.first, absl::StrCat(section.NameOf(key), " occurs twice, expected once"));
    }
  }
  return section;
}

std::string YamlSection::NameOf(absl::string_view key) const {
  return name_.empty() ? std::string(key) : absl::StrCat(name_, ".", key);
}

YAML::Node YamlSection::Find(absl::string_view key) const {
  for (const auto& entry : node_) {
    if (entry.first.Scalar() == key) return entry.second;
  }
  return YAML::Node(YAML::NodeType::Undefined);
}

bool YamlSection::Has(absl::string_view key) const {
  return Find(key).IsDefined();
}

absl::Status YamlSection::Unexpected(absl::string_view key, absl::string_view expected) const {
  const YAML::Node value = Find(key);
  if (value.IsDefined()) return UnexpectedYaml(path_, value, NameOf(key), expected);
  return YamlError(path_, node_, absl::StrCat(NameOf(key), ": missing, expected ", expected));
}

absl::Status YamlSection::ReadNumber(absl::string_view key, const YAML::Node& value, double least,
                                     double most, double* number) const {
  double read = 0.0;
  const bool is_number = value.IsScalar() && IsPlain(value) && absl::SimpleAtod(value.Scalar(), &read);
  if (!is_number || !(read >= least && read <= most)) {
    return UnexpectedYaml(path_, value, NameOf(key), absl::StrCat("a number from ", least, " to ", most));
  }
  *number = read;
  return absl::OkStatus();
}

absl::Status YamlSection::ReadWhole(absl::string_view key, const YAML::Node& value, uint64_t least,
                                    uint64_t most, uint64_t* number) const {
  uint64_t read = 0;
  const bool is_number = value.IsScalar() && IsPlain(value) && absl::SimpleAtoi(value.Scalar(), &read);
  if (!is_number || read < least || read > most) {
    return UnexpectedYaml(path_, value, NameOf(key),
                          absl::StrCat("a whole number from ", least, " to ", most));
  }
  *number = read;
  return absl::OkStatus();
}

absl::Status YamlSection::Read(absl::string_view key, double least, double most, double* value) const {
  const YAML::Node node = Find(key);
  return node.IsDefined() ? ReadNumber(key, node, least, most, value) : absl::OkStatus();
}

absl::Status YamlSection::Read(absl::string_view key, uint64_t least, uint64_t most, uint64_t* value) const {
  const YAML::Node node = Find(key);
  return node.IsDefined() ? ReadWhole(key, node, least, most, value) : absl::OkStatus();
}

absl::Status YamlSection::Read(absl::string_view key, uint32_t least, uint32_t most, uint32_t* value) const {
  uint64_t read = *value;
  TANDEM_RETURN_IF_ERROR(Read(key, uint64_t{least}, uint64_t{most}, &read));
  *value = static_cast<uint32_t>(read);
  return absl::OkStatus();
}

absl::Status YamlSection::Read(absl::string_view key, bool* value) const {
  const YAML::Node node = Find(key);
  if (!node.IsDefined()) return absl::OkStatus();
  if (!node.IsScalar() || (node.Scalar() != "true" && node.Scalar() != "false")) {
    return UnexpectedYaml(path_, node, NameOf(key), "true or false");
  }
  *value = node.Scalar() == "true";
  return absl::OkStatus();
}

absl::Status YamlSection::Read(absl::string_view key, std::string* value) const {
  const YAML::Node node = Find(key);
  if (!node.IsDefined()) return absl::OkStatus();
  if (!node.IsScalar() || node.Scalar().empty()) return UnexpectedYaml(path_, node, NameOf(key), "a text");
  *value = node.Scalar();
  return absl::OkStatus();
}

absl::Status YamlSection::Visit(absl::string_view key, const OnNode& on_node) const {
  const YAML::Node node = Find(key);
  return node.IsDefined() ? on_node(node, NameOf(key)) : absl::OkStatus();
}

absl::Status YamlSection::VisitList(absl::string_view key, const OnNode& on_node) const {
  const YAML::Node list = Find(key);
  if (!list.IsDefined()) return absl::OkStatus();
  if (!list.IsSequence() || list.size() == 0 || list.size() > kMostEntries) {
    return UnexpectedYaml(path_, list, NameOf(key), absl::StrCat("a list of 1 to ", kMostEntries));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(on_node(list[i], absl::StrCat(NameOf(key), "[", i, "]")));
  }
  return absl::OkStatus();
}

absl::Status YamlSection::VisitMap(
    absl::string_view key,
    const std::function<absl::Status(const std::string&, const YAML::Node&)>& on_entry) const {
  const YAML::Node map = Find(key);
  if (!map.IsDefined()) return absl::OkStatus();
  if (!map.IsMap() || map.size() == 0 || map.size() > kMostEntries) {
    return UnexpectedYaml(path_, map, NameOf(key), "a mapping with at least one key");
  }
  std::set<std::string> seen;
  for (const auto& entry : map) {
    if (!entry.first.IsScalar() || !seen.insert(entry.first.Scalar()).second) {
      return UnexpectedYaml(path_, entry.first, NameOf(key), "a new key");
    }
    TANDEM_RETURN_IF_ERROR(on_entry(entry.first.Scalar(), entry.second));
  }
  return absl::OkStatus();
}

absl::Status YamlSection::Read(absl::string_view key, std::vector<std::string>* values) const {
  return VisitList(key, [&](const YAML::Node& node, const std::string& name) {
    if (!node.IsScalar() || node.Scalar().empty()) return UnexpectedYaml(path_, node, name, "a text");
    values->push_back(node.Scalar());
    return absl::OkStatus();
  });
}

absl::Status YamlSection::Read(absl::string_view key, double least, double most,
                               std::vector<double>* values) const {
  return VisitList(key, [&](const YAML::Node& node, const std::string&) {
    return ReadNumber(key, node, least, most, &values->emplace_back());
  });
}

absl::Status YamlSection::Read(absl::string_view key, uint32_t least, uint32_t most,
                               std::vector<uint32_t>* values) const {
  return VisitList(key, [&](const YAML::Node& node, const std::string&) {
    uint64_t number = 0;
    TANDEM_RETURN_IF_ERROR(ReadWhole(key, node, least, most, &number));
    values->push_back(static_cast<uint32_t>(number));
    return absl::OkStatus();
  });
}

}  // namespace tandem::plan
