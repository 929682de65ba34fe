#include "bench/rounds/loaded_model.h"

#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/model/model.h"

namespace tandem::bench {

absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, int threads, const std::string& head_target,
                                      WeightType weight_type) {
  std::shared_ptr<const Model> target;
  TANDEM_ASSIGN_OR_RETURN(const bool is_head, Model::IsHead(folder, head_target));
  const bool shares = is_head && !head_target.empty();
  if (shares) {
    TANDEM_ASSIGN_OR_RETURN(target, Model::Load(head_target));
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, Model::LoadHead(folder, target));
  const absl::string_view trimmed = absl::StripSuffix(folder, "/");
  LoadedModel loaded{
      .name = std::string(trimmed.substr(trimmed.rfind('/') + 1)), .engine = {}, .tokenizer = {}};
  TANDEM_ASSIGN_OR_RETURN(loaded.tokenizer,
                          Tokenizer::LoadForModel(shares ? head_target : folder, model->config().vocab_size));
  CpuEngineOptions options;
  options.num_blocks = static_cast<uint32_t>(2 * model->config().max_context) / kBlockTokens;
  options.num_threads = threads;
  options.weight_type = weight_type;
  TANDEM_ASSIGN_OR_RETURN(loaded.engine, CreateCpuEngine(std::move(model), options));
  return loaded;
}

}  // namespace tandem::bench
