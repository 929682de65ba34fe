#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/drafting/source_host.h"
#include "common/engine/block_pool.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cuda/open_device.h"
#include "common/engine/engine.h"
#include "common/engine/kv_type.h"
#include "common/engine/paced_engine.h"
#include "common/engine/weight_type.h"
#include "common/grammar/compiled.h"
#include "common/model/load_progress.h"
#include "common/model/model.h"
#include "common/model/model_spec.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter/drafting/draft_session.h"

namespace tandem {

// ParseModelSpec of each; where a source is named (NamesSource) in place of a folder, its kind is the default
// name. InvalidArgument for a name that is given twice, and when there is none.
absl::StatusOr<std::vector<ModelSpec>> ParseModelSpecs(const std::vector<std::string>& values);

// A draft model that is another one whose trees are merged with those of sources.
struct MergeSpec {
  std::string name;
  std::string model;
  std::vector<SourceSpec> sources;  // At least one.
};

// From NAME=MODEL+SOURCE, with more sources after more plus signs. InvalidArgument for a model that is not
// one of `models` or has no folder, and for a name that is taken.
absl::StatusOr<std::vector<MergeSpec>> ParseMergeSpecs(const std::vector<std::string>& values,
                                                       const std::vector<ModelSpec>& models);

// The draft models of a process, with their engines, and the sources that need none.
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
    WeightType weight_type = WeightType::kAsInFile;  // See WeightTypeOf.
    KvType kv_type = KvType::kAuto;
    // Where the engines are; on a GPU, threads, CPUs and instruction set do not matter.
    DeviceSpec device;
    uint64_t gpu_memory_limit = 0;  // Bytes of each model: CudaDeviceOptions.
    bool gpu_low_priority = false;
    // What draft heads ask verifiers for.
    FeatureType feature_type = FeatureType::kBf16;
    // Makes passes last longer than they need; for measurements.
    std::optional<Pace> pace;
    // Asked between tensors, from Load's thread: true ends Load with Cancelled. Unset: never.
    std::function<bool()> stopped;
  };

  // What Load keeps the matrices of `model` in: as asked, but where it is left to the drafter and the files
  // hold 16 bits or fewer, int8 on a CPU. A step reads half of the bytes then, and what is rounded away
  // decides about one guess in a hundred; no output depends on it (DESIGN law 3).
  static WeightType WeightTypeOf(const Model& model, const Options& options);

  // `target_vocabularies`: folders of targets to draft for whose vocabularies may be other ones
  // (TargetVocabulary). `head_target`: the folder of the target that draft heads among the models read, and
  // share tensors and vocabulary with; empty without heads, or for heads that bring everything. Errors are
  // those of Model::Load, Tokenizer::Load, StopHead::LoadIfPresent, ParseSourceSpec and LoadTargetVocabulary,
  // and InvalidArgument when the tokenizer has ids that the model has no logits for. `merges` come from
  // ParseMergeSpecs.
  static absl::StatusOr<std::unique_ptr<ModelHost>> Open(
      const std::vector<ModelSpec>& specs, const std::vector<MergeSpec>& merges = {},
      const std::string& head_target = "", const std::vector<std::string>& target_vocabularies = {});

  // Errors are those of the engines, and Cancelled.
  absl::Status Load(const Options& options);
  // After Load, and before anybody drafts: how many seconds a level of one session's tree takes, by model, as
  // the fastest of a few passes of one row. Errors are those of the engines.
  absl::StatusOr<std::map<const Model*, double>> MeasureLevels();
  // Share of all weights that Load has done, in [0, 1]. Safe from any thread.
  double load_progress() const;

  // After Load. They point into the host, or, of one that the host was made to drop, into what Hold gave.
  std::vector<DraftModel> draft_models() const;
  // What the draft model of that name points to: it lives as long as this or the host does.
  std::shared_ptr<void> Hold(absl::string_view name) const;
  // The host forgets the model, which is none that another one is made of.
  void Drop(absl::string_view name);
  // The model that a --merge is made of; empty for what is none.
  std::string MadeOf(absl::string_view name) const;
  // Bytes of weights, keys and values that a model takes with these options, reckoned from its
  // configuration; 0 of sources.
  struct Memory {
    uint64_t weights = 0;
    uint64_t kv = 0;
    uint64_t total() const { return weights + kv; }
  };
  static Memory MemoryOf(const Model& model, const Options& options);
  struct Description {
    std::string name;
    std::shared_ptr<const Model> model;  // None for a source.
    uint64_t vocabulary_fingerprint = 0;
    // For constraints; none of a source, without end-of-text tokens, or in a build without grammars. Models
    // that have the same share it.
    std::shared_ptr<const GrammarVocabulary> grammar_vocabulary;
    std::vector<OtherVocabulary> other_vocabularies;  // As DraftModel has them.
  };
  std::vector<Description> descriptions() const;

 private:
  struct Hosted {
    ModelSpec spec;
    std::unique_ptr<SourceHost> source;  // Then there is nothing of what follows.
    std::shared_ptr<const Model> model;
    uint64_t vocabulary_fingerprint = 0;
    std::shared_ptr<const GrammarVocabulary> grammar_vocabulary;
    std::vector<OtherVocabulary> other_vocabularies;
    uint64_t weight_bytes = 0;
    std::unique_ptr<LoadProgress> progress;
    std::unique_ptr<const StopHead> stop_head;  // If the folder has one.
    std::unique_ptr<Engine> engine;
    std::unique_ptr<BlockPool> pool;
  };

  struct Merged {
    std::string name;
    std::shared_ptr<Hosted> hosted;  // The model.
    std::vector<std::unique_ptr<SourceHost>> sources;
  };

  ModelHost() = default;
  Description Describe(const std::string& name, const Hosted& hosted) const;
  // That of an earlier model, if it is the same, or a new one.
  std::shared_ptr<const GrammarVocabulary> VocabularyFor(const Tokenizer& tokenizer, const Hosted& hosted,
                                                         const GenerationDefaults& defaults) const;

  std::vector<std::shared_ptr<Hosted>> hosted_;
  std::vector<std::shared_ptr<Merged>> merged_;
  FeatureType feature_type_ = FeatureType::kBf16;  // As of Load.
};

}  // namespace tandem
