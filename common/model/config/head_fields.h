#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/model/config/head_config.h"
#include "common/model/config/json_fields.h"

namespace tandem {

// Functions that formats of draft heads share for reading a config.json. Errors as in ParseModelConfig.

inline constexpr int32_t kMostTargetLayers = 1024;
inline constexpr int32_t kMostTokens = 1 << 22;
// As many as a drafter may ask for.
inline constexpr size_t kMostFeatureLayers = 8;
// No more than a tree is deep.
inline constexpr int32_t kMostPositions = 32;

// Sets `feature_layers` to those of the list `name`, if there is one. `first`: what the file's 0 stands for,
// in numbers of layers.
absl::Status ReadFeatureLayers(const JsonFields& fields, absl::string_view name, int32_t first,
                               HeadConfig* head);

// What the file says of the target: its width, how many tokens the head drafts, and the target's fingerprint.
absl::Status ReadHeadTarget(const JsonFields& fields, HeadConfig* head);

}  // namespace tandem
