#include "common/engine/cuda/rank_settings.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kHashedWeightBytes = 4096;

constexpr size_t kNumWords = 4;
constexpr const char* kNames[kNumWords] = {"another model", "another weight type (--weight-dtype)",
                                           "other steps (the most rows of one)",
                                           "other room for keys and values (--kv-tokens)"};

// In the order of the names.
std::array<uint64_t, kNumWords> WordsOf(const RankSettings& settings) {
  // Neither of these two types rounds.
  const WeightType kept =
      settings.weight_type == WeightType::kBf16 ? WeightType::kAsInFile : settings.weight_type;
  return {settings.model, static_cast<uint64_t>(kept), settings.max_rows, settings.kv_size};
}

}  // namespace

uint64_t ModelHash(const Model& model) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, of whole words.
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  const ModelConfig& config = model.config();
  for (const int32_t size :
       {config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim,
        config.intermediate_size, config.vocab_size, config.max_context, config.sliding_window.value_or(0)}) {
    add(static_cast<uint64_t>(size));
  }
  add(std::bit_cast<uint32_t>(config.rms_norm_epsilon));
  add(std::bit_cast<uint64_t>(config.rope_theta));
  const RopeScaling& scaling = config.rope_scaling;
  add(static_cast<uint64_t>(scaling.kind));
  for (const double number : {scaling.factor, scaling.low_frequency_factor, scaling.high_frequency_factor,
                              static_cast<double>(scaling.original_context), scaling.attention_factor}) {
    add(std::bit_cast<uint64_t>(number));
  }
  const TensorView& embedding = model.embedding();
  add(static_cast<uint64_t>(embedding.dtype));
  const auto* const bytes = static_cast<const uint8_t*>(embedding.data);
  const size_t num_bytes = std::min<uint64_t>(embedding.num_bytes(), kHashedWeightBytes);
  for (size_t i = 0; i < num_bytes; ++i) add(bytes[i]);
  return hash;
}

absl::Status CompareRanks(const RankSettings& settings, DeviceOps* ops) {
  const std::array<uint64_t, kNumWords> words = WordsOf(settings);
  std::vector<uint64_t> all(kNumWords * ops->parallel().world_size);
  // Gathering copies bits and does not interpret them.
  constexpr size_t kFloats = sizeof(uint64_t) / sizeof(float);
  TANDEM_ASSIGN_OR_RETURN(const auto mine, ops->Allocate<float>(kNumWords * kFloats, "ranks"));
  TANDEM_ASSIGN_OR_RETURN(const auto gathered, ops->Allocate<float>(all.size() * kFloats, "ranks"));
  TANDEM_RETURN_IF_ERROR(ops->Upload(mine.data, words.data(), sizeof(words)));
  TANDEM_RETURN_IF_ERROR(ops->AllGather(mine, gathered));
  TANDEM_RETURN_IF_ERROR(ops->Download(all.data(), gathered.data, all.size() * sizeof(uint64_t)));
  TANDEM_RETURN_IF_ERROR(ops->Synchronize());
  for (size_t i = kNumWords; i < all.size(); ++i) {
    if (all[i] == all[i % kNumWords]) continue;
    return absl::InvalidArgumentError(absl::StrCat("rank ", i / kNumWords, " was started with ",
                                                   kNames[i % kNumWords],
                                                   " than rank 0; expected the same for all ranks"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
