#include "common/model/model_spec.h"

#include "absl/strings/str_cat.h"

namespace tandem {

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view value) {
  ModelSpec spec;
  const size_t equals = value.find('=');
  if (equals != absl::string_view::npos) {
    spec = {std::string(value.substr(0, equals)), std::string(value.substr(equals + 1))};
  } else {
    absl::string_view folder = value;
    while (folder.size() > 1 && folder.back() == '/') folder.remove_suffix(1);
    spec = {std::string(folder.substr(folder.rfind('/') + 1)), std::string(folder)};
  }
  if (spec.name.empty() || spec.folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: \"", value, "\", expected NAME=FOLDER or FOLDER"));
  }
  return spec;
}

}  // namespace tandem
