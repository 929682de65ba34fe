#include "common/testing/renamed_engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

RenamedEngine::RenamedEngine(Engine* engine, const std::vector<TokenId>& ids, int32_t vocab_size)
    : engine_(*engine), ids_(ids), others_(static_cast<size_t>(vocab_size), -1), config_(engine->config()) {
  for (size_t other = 0; other < ids.size(); ++other) {
    others_.at(static_cast<size_t>(ids[other])) = static_cast<TokenId>(other);
  }
  config_.vocab_size = vocab_size;
}

absl::Status RenamedEngine::Step(absl::Span<const StepRow> rows) {
  constexpr float kLikeliest = 1e4f;
  std::vector<StepRow> renamed(rows.begin(), rows.end());
  std::vector<std::vector<float>> logits(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenId token = rows[i].token;
    if (token < 0 || token >= config_.vocab_size || others_[static_cast<size_t>(token)] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token, ", which has no other name"));
    }
    renamed[i].token = others_[static_cast<size_t>(token)];
    if (rows[i].logits == nullptr) continue;
    logits[i].resize(static_cast<size_t>(engine_.config().vocab_size));
    renamed[i].logits = logits[i].data();
  }
  TANDEM_RETURN_IF_ERROR(engine_.Step(renamed));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].logits == nullptr) continue;
    std::fill_n(rows[i].logits, config_.vocab_size, kLikeliest);
    for (size_t other = 0; other < ids_.size(); ++other) {
      rows[i].logits[static_cast<size_t>(ids_[other])] = logits[i][other];
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
