#include "common/rpc/arithmetic.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace tandem {

std::string ComputesInWords(const v1::ServerInfo& info, const v1::ModelInfo& model) {
  if (model.context_length() == 0) return std::string();
  std::string words = absl::StrCat("vocabulary ", model.vocabulary_fingerprint(), " ",
                                   model.vocabulary_size(), ", context ", model.context_length(), ", ",
                                   model.parameters(), " ", model.weight_type(), " of ", model.architecture(),
                                   " ", model.target_fingerprint(), ", ", info.arithmetic(), ", ends with");
  for (const uint32_t token : info.end_tokens()) absl::StrAppend(&words, " ", token);
  return words;
}

uint64_t ArithmeticOf(absl::string_view computes) {
  return computes.empty() ? 0 : std::max<uint64_t>(HashBytes(computes), 1);
}

uint64_t ArithmeticWithAdapter(uint64_t arithmetic, uint64_t fingerprint) {
  return arithmetic == 0 ? 0 : std::max<uint64_t>(HashCombine(arithmetic, fingerprint), 1);
}

}  // namespace tandem
