#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A value of --model: the served name of a model, and its folder.
struct ModelSpec {
  std::string name;
  std::string folder;
  bool plain_eagle3 = false;  // HeadOptions, of a draft head.

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// Parses NAME=FOLDER, or FOLDER, whose base name is then the name. InvalidArgument for an empty name or
// folder.
absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view value);

}  // namespace tandem
