#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config/model_config.h"

namespace tandem {

// The names that ModelShapeJson knows, in the order of the documentation.
std::vector<std::string> ModelShapeNames();

// The text of a Hugging Face config.json with the dimensions of a published model, for measurements on random
// weights. A name that ends in "-1layer" is one layer of the model, for sizes that do not fit on a small
// machine. InvalidArgument, with the known names, for an unknown name.
absl::StatusOr<std::string> ModelShapeJson(absl::string_view name);

// The same, in the engine's form.
absl::StatusOr<ModelConfig> ModelShape(absl::string_view name);

}  // namespace tandem
