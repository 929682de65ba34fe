#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/block_pool.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/engine.h"
#include "common/engine/paced_engine.h"
#include "common/model/load_progress.h"
#include "common/model/model.h"
#include "common/model/model_spec.h"
#include "drafter/draft_session.h"

namespace tandem {

// ParseModelSpec of each. InvalidArgument for a name that is given twice, and when there is none.
absl::StatusOr<std::vector<ModelSpec>> ParseModelSpecs(const std::vector<std::string>& values);

// The draft models of a process, with their engines.
//
//   Open (maps and checks the folders) -> Load (packs the weights: the long part) -> draft_models
class ModelHost {
 public:
  struct Options {
    // Of each model.
    uint64_t kv_tokens = 32768;
    int num_threads = 1;
    std::vector<int> cpus;  // One for each thread, or none: CpuEngineOptions.
    InstructionSet instruction_set = InstructionSet::kAuto;
    // Makes passes last longer than they need; for measurements.
    std::optional<Pace> pace;
  };

  // Errors are those of Model::Load and Tokenizer::Load, and InvalidArgument when the tokenizer has ids that
  // the model has no logits for.
  static absl::StatusOr<std::unique_ptr<ModelHost>> Open(const std::vector<ModelSpec>& specs);

  absl::Status Load(const Options& options);
  // Share of all weights that Load has done, in [0, 1]. Safe from any thread.
  double load_progress() const;

  // After Load. They point into the host.
  std::vector<DraftModel> draft_models() const;
  struct Description {
    std::string name;
    std::shared_ptr<const Model> model;
    uint64_t vocabulary_fingerprint = 0;
  };
  std::vector<Description> descriptions() const;

 private:
  struct Hosted {
    ModelSpec spec;
    std::shared_ptr<const Model> model;
    uint64_t vocabulary_fingerprint = 0;
    uint64_t weight_bytes = 0;
    std::unique_ptr<LoadProgress> progress;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<BlockPool> pool;
  };

  ModelHost() = default;

  std::vector<Hosted> hosted_;
};

}  // namespace tandem
