#include "bench/step_work.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/kv_store.h"

namespace tandem {
namespace {

uint64_t MatrixBytes(uint64_t values, WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kF32:
    case WeightDtype::kQuantized:
    case WeightDtype::kExact:
      return 4 * values;
    case WeightDtype::kBf16:
      return 2 * values;
    case WeightDtype::kInt8:
    case WeightDtype::kW8A8:
    case WeightDtype::kFp8:
      return values;
    case WeightDtype::kInt4:
    case WeightDtype::kW4A8:
      return (values + 1) / 2;
  }
  return 0;
}

// Of the output head and the embedding.
uint64_t TokenMatrixBytes(uint64_t values, WeightDtype dtype) {
  return MatrixBytes(values, dtype == WeightDtype::kFp8 ? WeightDtype::kBf16 : dtype);
}

// Numbers of weights by what uses them.
struct Weights {
  uint64_t input = 0;      // Before the first layer: a draft head's `fc`.
  uint64_t key_value = 0;  // Of one layer: what every row needs.
  // What the first layer of an EAGLE-3 head has more of both, because its attention reads two vectors.
  uint64_t first_key_value = 0;
  uint64_t first_rest = 0;
  uint64_t rest = 0;        // Of one layer: query, attention output.
  uint64_t dense = 0;       // Of all layers: feed-forward parts that every row takes, routers among them.
  uint64_t last_dense = 0;  // Of the last one.
  uint64_t expert = 0;      // Of one expert.
  uint64_t output = 0;
};

// Of a layer's feed-forward part, what every row takes.
uint64_t DenseWeights(const ModelConfig& config, size_t layer) {
  const BlockDescription& block = config.block;
  const auto hidden = static_cast<uint64_t>(config.hidden_size);
  const uint64_t matrices = block.gated ? 3 : 2;
  if (!block.has_experts(layer)) return matrices * static_cast<uint64_t>(config.intermediate_size) * hidden;
  const auto shared = static_cast<uint64_t>(block.experts.shared_size);
  const bool has_gate = shared > 0 && block.experts.shared_gate;
  const uint64_t router = static_cast<uint64_t>(block.experts.num_experts) + (has_gate ? 1 : 0);
  return (matrices * shared + router) * hidden;
}

uint64_t CountSparseLayers(const ModelConfig& config) {
  uint64_t count = 0;
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) count += config.block.has_experts(i);
  return count;
}

// `reads_target`: of a draft head's rows that read the target's states, not the head's own.
Weights CountWeights(const ModelConfig& config, bool reads_target) {
  const auto hidden = static_cast<uint64_t>(config.hidden_size);
  const auto query = static_cast<uint64_t>(config.query_size());
  const auto kv = static_cast<uint64_t>(config.kv_size());
  // The attention of EAGLE-3's first layer reads an embedding and a state, and its `fc` the target's states;
  // that of other heads reads an embedding and a state, whosever it is.
  const bool is_eagle3 = config.head.has_value() && config.head->kind == HeadConfig::Kind::kEagle3;
  uint64_t input = 0;
  if (is_eagle3) {
    input = reads_target && config.head->projects ? config.head->state_size() * hidden : 0;
  } else if (config.head.has_value()) {
    input = 2 * hidden * hidden;
  }
  const int32_t num_outputs = config.head.has_value() ? config.head->draft_vocab_size : config.vocab_size;
  Weights weights = {.input = input,
                     .key_value = 2 * kv * hidden,
                     .first_key_value = is_eagle3 ? 2 * kv * hidden : 0,
                     .first_rest = is_eagle3 ? query * hidden : 0,
                     .rest = 2 * query * hidden,
                     .output = static_cast<uint64_t>(num_outputs) * hidden};
  if (const LatentDescription& latent = config.block.latent; latent.exists()) {
    const auto heads = static_cast<uint64_t>(config.num_heads);
    const auto queries = heads * static_cast<uint64_t>(latent.query_dim());
    const auto query_rank = static_cast<uint64_t>(latent.query_rank);
    const auto up = heads * static_cast<uint64_t>(latent.unturned_dim + latent.value_dim);
    weights.key_value = kv * hidden;
    weights.rest = (query_rank > 0 ? query_rank * (hidden + queries) : hidden * queries) +
                   up * static_cast<uint64_t>(latent.kv_rank) +
                   static_cast<uint64_t>(config.attended_size()) * hidden;
  }
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) {
    weights.last_dense = DenseWeights(config, i);
    weights.dense += weights.last_dense;
  }
  weights.expert = 3 * static_cast<uint64_t>(config.block.experts.intermediate_size) * hidden;
  return weights;
}

// `num_wanted` rows have logits; `sum_lengths` and `wanted_lengths` are the contexts' lengths added up, over
// all rows and over the wanted ones.
StepWork CountWork(const ModelConfig& config, const Weights& weights, WeightDtype dtype, uint64_t num_rows,
                   uint64_t num_wanted, uint64_t sum_lengths, uint64_t wanted_lengths, uint64_t kv_tokens,
                   KvType kv_type, std::optional<uint64_t> experts_read) {
  const auto layers = static_cast<uint64_t>(config.num_layers);
  const auto query = static_cast<uint64_t>(config.query_size());
  StepWork work;
  const uint64_t read = experts_read.value_or(FewestExperts(config));
  work.weight_bytes =
      MatrixBytes(weights.input + weights.first_key_value + weights.first_rest +
                      layers * (weights.key_value + weights.rest) + weights.dense + read * weights.expert,
                  dtype) +
      TokenMatrixBytes(num_rows * static_cast<uint64_t>(config.hidden_size), dtype);
  if (num_wanted > 0) work.weight_bytes += TokenMatrixBytes(weights.output, dtype);
  work.kv_bytes = kv_tokens * (KvStore::BytesPerBlock(config, kv_type).value_or(0) / kBlockTokens);
  // A row without logits ends with the last layer's keys and values.
  uint64_t products = num_rows * (weights.input + weights.first_key_value + layers * weights.key_value);
  products += (layers > 1 ? num_rows : num_wanted) * weights.first_rest;
  products += (num_rows * (layers - 1) + num_wanted) * weights.rest + num_wanted * weights.output;
  products += num_rows * (weights.dense - weights.last_dense) + num_wanted * weights.last_dense;
  const auto num_chosen = static_cast<uint64_t>(config.block.experts.num_chosen);
  const uint64_t last_sparse = config.block.has_experts(layers - 1) ? 1 : 0;
  products += num_chosen * weights.expert *
              (num_rows * (CountSparseLayers(config) - last_sparse) + num_wanted * last_sparse);
  // Scores and the sum of values: products of the size of queries and of what is summed up, per position.
  const auto summed = static_cast<uint64_t>(config.num_heads) * static_cast<uint64_t>(config.value_dim());
  products += (query + summed) * ((layers - 1) * sum_lengths + wanted_lengths);
  work.operations = 2 * products;
  return work;
}

}  // namespace

uint64_t FewestExperts(const ModelConfig& config) {
  return CountSparseLayers(config) * static_cast<uint64_t>(config.block.experts.num_chosen);
}

absl::string_view WeightDtypeName(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kF32:
      return "f32";
    case WeightDtype::kBf16:
      return "bf16";
    case WeightDtype::kInt8:
      return "int8";
    case WeightDtype::kInt4:
      return "int4";
    case WeightDtype::kW8A8:
      return "w8a8";
    case WeightDtype::kW4A8:
      return "w4a8";
    case WeightDtype::kFp8:
      return "fp8";
    case WeightDtype::kQuantized:
      return "auto";
    case WeightDtype::kExact:
      return "exact";
  }
  return "unknown";
}

absl::StatusOr<WeightDtype> ParseWeightDtype(absl::string_view name) {
  for (const WeightDtype known :
       {WeightDtype::kBf16, WeightDtype::kInt8, WeightDtype::kInt4, WeightDtype::kW8A8, WeightDtype::kW4A8,
        WeightDtype::kFp8, WeightDtype::kQuantized, WeightDtype::kExact}) {
    if (name == WeightDtypeName(known)) return known;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("weight dtype \"", name, "\", expected bf16, int8, int4, w8a8, w4a8, fp8, auto or exact"));
}

absl::string_view RowTreeName(RowTree shape) {
  switch (shape) {
    case RowTree::kBinary:
      return "binary";
    case RowTree::kChain:
      return "chain";
    case RowTree::kSiblings:
      return "siblings";
  }
  return "unknown";
}

absl::StatusOr<RowTree> ParseRowTree(absl::string_view name) {
  for (const RowTree known : {RowTree::kBinary, RowTree::kChain, RowTree::kSiblings}) {
    if (name == RowTreeName(known)) return known;
  }
  return absl::InvalidArgumentError(absl::StrCat("tree \"", name, "\", expected binary, chain or siblings"));
}

std::vector<int32_t> TreeParents(RowTree shape, uint32_t num_rows) {
  std::vector<int32_t> parents(num_rows, -1);
  for (uint32_t row = 1; row < num_rows; ++row) {
    if (shape == RowTree::kBinary) parents[row] = static_cast<int32_t>((row - 1) / 2);
    if (shape == RowTree::kChain) parents[row] = static_cast<int32_t>(row - 1);
  }
  return parents;
}

std::vector<uint32_t> TreeDepths(RowTree shape, uint32_t num_rows) {
  const std::vector<int32_t> parents = TreeParents(shape, num_rows);
  std::vector<uint32_t> depths(num_rows, 1);
  for (uint32_t row = 0; row < num_rows; ++row) {
    if (parents[row] >= 0) depths[row] = depths[static_cast<uint32_t>(parents[row])] + 1;
  }
  return depths;
}

StepWork TreeStepWork(const ModelConfig& config, WeightDtype dtype, uint32_t num_rows, uint32_t context,
                      RowTree tree, KvType kv_type, std::optional<uint64_t> experts_read) {
  uint64_t lengths = 0;
  for (const uint32_t depth : TreeDepths(tree, num_rows)) lengths += uint64_t{context} + depth;
  return CountWork(config, CountWeights(config, /*reads_target=*/false), dtype, num_rows, num_rows, lengths,
                   lengths, uint64_t{context} + num_rows, kv_type, experts_read);
}

StepWork PromptStepWork(const ModelConfig& config, WeightDtype dtype, uint32_t first, uint32_t num_tokens,
                        bool with_logits, KvType kv_type, std::optional<uint64_t> experts_read) {
  const uint64_t end = uint64_t{first} + num_tokens;
  uint64_t lengths = 0;
  for (uint64_t position = first; position < end; ++position) lengths += position + 1;
  return CountWork(config, CountWeights(config, /*reads_target=*/true), dtype, num_tokens,
                   with_logits ? 1 : 0, lengths, with_logits ? end : 0, end, kv_type, experts_read);
}

double FloorSeconds(const StepWork& work, double bytes_per_second, double operations_per_second) {
  return std::max(static_cast<double>(work.bytes()) / bytes_per_second,
                  static_cast<double>(work.operations) / operations_per_second);
}

}  // namespace tandem
