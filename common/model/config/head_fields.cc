#include "common/model/config/head_fields.h"

#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadFeatureLayers(const JsonFields& fields, absl::string_view name, int32_t first,
                               HeadConfig* head) {
  const nlohmann::json* const ids = fields.Find(name);
  // An empty list is no choice either.
  if (ids == nullptr || (ids->is_array() && ids->empty())) return absl::OkStatus();
  const std::string expected =
      absl::StrCat("a list of up to ", kMostFeatureLayers, " numbers of layers, ascending");
  if (!ids->is_array() || ids->size() > kMostFeatureLayers) return fields.Unexpected(name, expected);
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_integer() || id < 0 || id > kMostTargetLayers) return fields.Unexpected(name, expected);
    const auto layer = static_cast<uint32_t>(id.get<int32_t>() + first);
    if (!head->feature_layers.empty() && layer <= head->feature_layers.back()) {
      return fields.Unexpected(name, expected);
    }
    head->feature_layers.push_back(layer);
  }
  return absl::OkStatus();
}

absl::Status ReadHeadTarget(const JsonFields& fields, HeadConfig* head) {
  TANDEM_ASSIGN_OR_RETURN(head->target_hidden_size, fields.IntOr("target_hidden_size", 1, kMostHidden, 0));
  // Nebius' heads say it in other words.
  const char* const drafted =
      fields.Find("draft_vocab_size") == nullptr ? "truncated_vocab_size" : "draft_vocab_size";
  TANDEM_ASSIGN_OR_RETURN(head->draft_vocab_size, fields.IntOr(drafted, 1, kMostTokens, 0));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> fingerprint,
                          fields.String("tandem_target_fingerprint"));
  if (!fingerprint.has_value()) return absl::OkStatus();
  uint64_t number = 0;
  if (fingerprint->size() != 16 || !absl::SimpleHexAtoi(*fingerprint, &number)) {
    return fields.Unexpected("tandem_target_fingerprint", "16 hexadecimal digits");
  }
  head->target_fingerprint = number;
  return absl::OkStatus();
}

}  // namespace tandem
