#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/step_work.h"
#include "common/engine/block_pool.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cuda/open_device.h"
#include "common/engine/engine.h"
#include "common/engine/kv_type.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"

namespace tandem {

// What to measure. Exactly one of `folder` and `shape` is set.
struct ModelSource {
  std::string folder;       // Hugging Face model folder.
  std::string shape;        // See model_shapes.h; random weights.
  std::string head_target;  // Of a draft head in `folder`: the folder of the target that it reads; or empty.
};

// InvalidArgument unless exactly one is given; otherwise the errors of Model::LoadHead and Model::Random.
absl::StatusOr<std::shared_ptr<const Model>> LoadModel(const ModelSource& source);

// One engine and the passes that are measured on it. A draft head's prompts read states of its target, which
// are zeros, and its trees read its own. Belongs to one thread.
class EngineRunner {
 public:
  struct Options {
    int threads = 1;
    InstructionSet instruction_set = InstructionSet::kAuto;
    WeightDtype weight_dtype = WeightDtype::kBf16;
    KvType kv_type = KvType::kAuto;
    DeviceSpec device;
    std::string adapter;  // Folder of one that all rows have; empty: none.
    RowTree tree = RowTree::kBinary;
    uint32_t most_rows = 64;      // Of a tree.
    uint32_t most_context = 128;  // Of a tree's context, and of a prompt.
  };

  // `model` is used while this runs, not later. Errors: the engine's; InvalidArgument for sizes beyond the
  // model's context.
  static absl::StatusOr<std::unique_ptr<EngineRunner>> Create(const std::shared_ptr<const Model>& model,
                                                              const Options& options);

  // Makes the next trees stand on `num_tokens` tokens (1 to most_context). Only the first block is computed,
  // the rest are copies of it: what is read is as large, and a long context costs no prefill.
  absl::Status SetContext(uint32_t num_tokens);

  // Seconds of one pass over the first `num_rows` nodes of the tree, all with logits, or with greedy choices
  // if the engine makes them.
  absl::StatusOr<double> TreeStep(uint32_t num_rows);
  // Seconds from a prompt's first token to the logits of its last, in passes of at most kPromptRows.
  absl::StatusOr<double> Prefill(uint32_t num_tokens);
  // The tokens that follow when the likeliest is taken each time, the lowest id among equals. Not of a draft
  // head, which follows a target.
  absl::StatusOr<TokenIds> Greedy(absl::Span<const TokenId> prompt, uint32_t num_tokens);

  // What TreeStep and Prefill cannot do without. Prefill's is a list, one entry per pass. Of experts those
  // that the last such steps have read, before the first one the fewest.
  StepWork TreeWork(uint32_t num_rows) const;
  std::vector<StepWork> PrefillWork(uint32_t num_tokens) const;

  const ModelConfig& config() const { return engine_->config(); }
  // The logits of the last TreeStep's row, if the engine makes no choices.
  absl::Span<const float> logits(uint32_t row) const;

  static constexpr uint32_t kPromptRows = 512;

 private:
  explicit EngineRunner(const Options& options) : options_(options) {}

  void MakeStates();
  absl::Status ComputePrompt(absl::Span<const TokenId> tokens, SequenceKv* kv);
  StepWork AsStored(StepWork work) const;
  TokenIds SomeTokens(uint32_t num_tokens) const;

  const Options options_;
  WeightDtype stored_dtype_ = WeightDtype::kBf16;
  // What quantised weights take in memory, scales included, over what they would in float32.
  double stored_share_ = 1;
  uint32_t context_ = 0;
  std::unique_ptr<Engine> engine_;
  AdapterId adapter_ = kNoAdapter;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<SequenceKv> kv_;
  std::vector<std::vector<SlotId>> paths_;  // Per row, from its tree's root to itself.
  std::vector<float> logits_;               // [most_rows, vocab]
  // Of a draft head: zeros that rows read, in a prompt and in a tree, and where a tree's rows put theirs.
  std::vector<float> zeros_;
  InputState target_state_;
  InputState own_state_;
  std::vector<float> outputs_;  // [most_rows, hidden]
  std::vector<FeatureRequest> output_requests_;
  uint32_t last_layer_ = 0;
  std::map<uint32_t, uint64_t> tree_experts_;                 // By number of rows.
  std::map<uint32_t, std::vector<uint64_t>> prompt_experts_;  // By number of tokens, of each pass.
};

}  // namespace tandem
