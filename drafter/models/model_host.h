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
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/steady_clock.h"
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

// Applies ParseModelSpec to each. A source (NamesSource) may stand in place of a folder; then its kind is the
// default name. InvalidArgument for a name that is given twice, and if there are no models.
absl::StatusOr<std::vector<ModelSpec>> ParseModelSpecs(const std::vector<std::string>& values);

// Sets ModelSpec::plain_eagle3 of the specs with these names. With `all_known`, InvalidArgument for a name
// that none has.
absl::Status MarkPlainHeads(const std::vector<std::string>& names, bool all_known,
                            std::vector<ModelSpec>* specs);

// A draft model that merges another one's trees with those of sources.
struct MergeSpec {
  std::string name;
  std::string model;
  std::vector<SourceSpec> sources;  // At least one.
};

// Parses NAME=MODEL+SOURCE, with more sources after more plus signs. InvalidArgument if the model is not one
// of `models` or has no folder, or if the name is taken.
absl::StatusOr<std::vector<MergeSpec>> ParseMergeSpecs(const std::vector<std::string>& values,
                                                       const std::vector<ModelSpec>& models);

// The draft models of a process, with their engines, and the sources, which need no engine.
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
    // The engines' device. On a GPU, threads, CPUs and instruction set do not matter.
    DeviceSpec device;
    uint64_t gpu_memory_limit = 0;  // Bytes of each model: CudaDeviceOptions.
    bool gpu_low_priority = false;
    // The type of the features that draft heads request from verifiers.
    FeatureType feature_type = FeatureType::kBf16;
    // Makes passes take longer than necessary, for measurements.
    std::optional<Pace> pace;
    // Called between tensors, on Load's thread; true ends Load with Cancelled. May be unset.
    std::function<bool()> stopped;
  };

  // The weight type in which Load keeps the matrices of `model`: the requested one. If none is requested and
  // the files hold 16 bits or fewer, int8 on a CPU: a step then reads half of the bytes, and rounding changes
  // about one guess in a hundred. No output depends on it (DESIGN law 3).
  static WeightType WeightTypeOf(const Model& model, const Options& options);

  // `target_vocabularies`: folders of targets whose vocabularies may differ (TargetVocabulary).
  // `head_target`: the folder of the target whose features draft heads read, and with which they share
  // tensors and the vocabulary; empty without heads, or for heads that have everything themselves. `merges`:
  // from ParseMergeSpecs. Errors are those of Model::Load, Tokenizer::Load, StopHead::LoadIfPresent,
  // ParseSourceSpec and LoadTargetVocabulary, and InvalidArgument if the tokenizer has ids for which the
  // model has no logits.
  static absl::StatusOr<std::unique_ptr<ModelHost>> Open(
      const std::vector<ModelSpec>& specs, const std::vector<MergeSpec>& merges = {},
      const std::string& head_target = "", const std::vector<std::string>& target_vocabularies = {});

  // Errors of the engines, and Cancelled.
  absl::Status Load(const Options& options);
  // All passes of MeasureLevels together, but for the first of each model, end within this.
  static constexpr absl::Duration kMeasuringTime = absl::Seconds(3);
  // Measures how many seconds a level of one session's tree takes, by model: the fastest of a few passes of
  // one row. Call it after Load, before anything drafts. Errors of the engines.
  absl::StatusOr<std::map<const Model*, double>> MeasureLevels(const Clock& clock = SteadyClock());
  // The share of all weights that Load has loaded, in [0, 1]. Thread-safe.
  double load_progress() const;

  // Only after Load. They point into the host or, after Drop, into the result of Hold.
  std::vector<DraftModel> draft_models() const;
  // Keeps the objects that this draft model points to alive as long as the result or the host exists.
  std::shared_ptr<void> Hold(absl::string_view name) const;
  // Removes the model from the host. No merge may use it.
  void Drop(absl::string_view name);
  // The model that a --merge uses; empty if `name` is no merge.
  std::string MadeOf(absl::string_view name) const;
  // Bytes of weights, keys and values of a model with these options, computed from its configuration; 0 for
  // sources.
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
    // For constraints. Null for a source, without end-of-text tokens, or in a build without grammars. Shared
    // by models with the same vocabulary.
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
  // The vocabulary of an earlier model, if it is the same, otherwise a new one.
  std::shared_ptr<const GrammarVocabulary> VocabularyFor(const Tokenizer& tokenizer, const Hosted& hosted,
                                                         const GenerationDefaults& defaults) const;

  std::vector<std::shared_ptr<Hosted>> hosted_;
  std::vector<std::shared_ptr<Merged>> merged_;
  FeatureType feature_type_ = FeatureType::kBf16;  // As of Load.
};

}  // namespace tandem
