#include "drafter/models/draft_card.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/served_folder.h"
#include "common/base/status_macros.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

// With figures of a long training.
constexpr size_t kMostCardBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<DraftCard> ReadDraftCard(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/draft_card.json");
  const absl::StatusOr<std::string> text = ReadFile(path, kMostCardBytes);
  if (absl::IsNotFound(text.status())) return DraftCard();
  if (!text.ok()) return text.status();
  TANDEM_ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(*text, path));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", PrintableValue(json), ", expected an object"));
  }
  DraftCard card;
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> version, JsonFields(json, path).String("version"));
  if (version.has_value()) {
    TANDEM_RETURN_IF_ERROR(CheckServedName(absl::StrCat(path, ": field version"), *version));
    card.version = *version;
  }
  return card;
}

}  // namespace tandem
