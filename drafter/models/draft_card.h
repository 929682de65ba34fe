#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// What a draft model's folder says of it in draft_card.json, as tandem-trainer writes it
// (docs/operate/learning.md).
struct DraftCard {
  std::string version;  // Empty: it does not say.
};

// An empty card where the folder has none. InvalidArgument, naming the file and the field, for one that makes
// no sense. Fields that are not known are passed over.
absl::StatusOr<DraftCard> ReadDraftCard(const std::string& folder);

}  // namespace tandem
