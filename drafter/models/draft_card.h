#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The description of a draft model in its folder's draft_card.json, which tandem-trainer writes
// (docs/operate/learning.md).
struct DraftCard {
  std::string version;  // Empty: it does not say.
};

// Reads the card; an empty one if the folder has none. InvalidArgument, naming the file and the field, if it
// is invalid. Unknown fields are ignored.
absl::StatusOr<DraftCard> ReadDraftCard(const std::string& folder);

}  // namespace tandem
