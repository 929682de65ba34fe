#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"

namespace tandem {

// Another engine under other token ids, for tests: a draft model whose vocabulary needs a bridge. Tokens that
// the other engine does not have are by far the likeliest.
//
// Thread rule: that of Engine.
class RenamedEngine final : public Engine {
 public:
  // `ids`: from each of the other engine's token ids to this one's, all of them different and below
  // `vocab_size`. `engine` outlives this.
  RenamedEngine(Engine* engine, const std::vector<TokenId>& ids, int32_t vocab_size);

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return engine_.num_blocks(); }
  uint32_t max_rows() const override { return engine_.max_rows(); }
  bool has_features() const override { return engine_.has_features(); }
  // InvalidArgument also for tokens that the other engine has not.
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_.CopyKv(copies); }

 private:
  Engine& engine_;
  const std::vector<TokenId> ids_;
  std::vector<TokenId> others_;  // The other way round; -1: none.
  ModelConfig config_;
};

}  // namespace tandem
