#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "yaml-cpp/yaml.h"

namespace tandem {

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr int kMaxYamlDepth = 32;
inline constexpr int kMaxYamlValues = 100'000;

// Parses a text with at most one document; an empty one is a null node. InvalidArgument, as
// "path:line:column: what", when it is too long or not YAML. Aliases become shared nodes, possibly with
// cycles, so bound every walk.
absl::StatusOr<YAML::Node> LoadYaml(absl::string_view text, absl::string_view path);

// InvalidArgument "path:line:column: what", with the node's place.
absl::Status YamlError(absl::string_view path, const YAML::Node& node, absl::string_view what);

// Whether a scalar was written without quotes and without a tag, so that its text decides its type.
bool IsPlain(const YAML::Node& scalar);

// The one of `known` that `name` is most likely a misspelling of, as `, did you mean "x"?`; empty when none
// is near.
std::string DidYouMean(absl::string_view name, const std::vector<std::string>& known);

}  // namespace tandem
