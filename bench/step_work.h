#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/kv_type.h"
#include "common/model/config/model_config.h"

namespace tandem {

// The type of a weight matrix. The floor counts only the values, not scales. kQuantized and kExact are "auto"
// and "exact" for a model whose files are quantised; they are counted as float32.
enum class WeightDtype { kF32, kBf16, kInt8, kInt4, kW8A8, kW4A8, kFp8, kQuantized, kExact };

// "bf16", "int8", "int4", "w8a8", "w4a8", "fp8", "auto" or "exact", as on command lines; InvalidArgument for
// anything else.
absl::StatusOr<WeightDtype> ParseWeightDtype(absl::string_view name);
absl::string_view WeightDtypeName(WeightDtype dtype);

// The tree of a step's rows below the context that they share: row 0 follows the context, the others follow
// their parents. kSiblings puts every row at the same position, without chains of ancestors.
enum class RowTree { kBinary, kChain, kSiblings };

// "binary", "chain" or "siblings"; InvalidArgument for anything else.
absl::StatusOr<RowTree> ParseRowTree(absl::string_view name);
absl::string_view RowTreeName(RowTree shape);

// The parent of every row; -1 if it follows the context directly.
std::vector<int32_t> TreeParents(RowTree shape, uint32_t num_rows);
// The number of rows on the path to each row, including it.
std::vector<uint32_t> TreeDepths(RowTree shape, uint32_t num_rows);

// The least work of one forward pass.
struct StepWork {
  // Every matrix once, whatever the number of rows, of experts those that rows take, and the embeddings of
  // the rows.
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;    // The shared context once, and each row's own entry.
  uint64_t operations = 0;  // Multiplications and additions of matrix products and attention.

  uint64_t bytes() const { return weight_bytes + kv_bytes; }
};

// The fewest experts that a step reads, over all layers: those of one row.
uint64_t FewestExperts(const ModelConfig& config);

// A tree of `num_rows` below `context` computed tokens, all rows with logits; for a draft head, a tree that
// it grows. `experts_read`: over all layers, as from ExpertsRead; nullopt: the fewest.
StepWork TreeStepWork(const ModelConfig& config, WeightDtype dtype, uint32_t num_rows, uint32_t context,
                      RowTree tree, KvType kv_type = KvType::kF32,
                      std::optional<uint64_t> experts_read = std::nullopt);
// Tokens `first` to `first + num_tokens` of a prompt in one pass, with logits of the last one if
// `with_logits`.
StepWork PromptStepWork(const ModelConfig& config, WeightDtype dtype, uint32_t first, uint32_t num_tokens,
                        bool with_logits, KvType kv_type = KvType::kF32,
                        std::optional<uint64_t> experts_read = std::nullopt);

// The shortest time that both rates allow: max(bytes / bandwidth, operations / peak).
double FloorSeconds(const StepWork& work, double bytes_per_second, double operations_per_second);

}  // namespace tandem
