// DeepSeek-V2 and V3 (DeepSeek-AI, 2024), and R1, which is a V3: latent attention, and experts in groups
// beside shared ones without a gate.

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {
namespace {

constexpr int32_t kMostRank = 4096;
constexpr int32_t kMostLatentHeadDim = 1024;
constexpr int32_t kMostSharedExperts = 64;

// What it means that V2 or V3 do not say something.
struct Absences {
  int32_t context = 2048;
  int32_t num_experts = 64;
  int32_t num_chosen = 0;  // 0: it has to be said.
  int32_t expert_size = 1407;
  int32_t num_shared = 2;
  int32_t num_dense = 0;
  int32_t num_groups = 1;
  int32_t num_chosen_groups = 1;
  double scale = 1.0;
};

// Null says 0.
absl::StatusOr<int32_t> CountOrNone(const JsonFields& fields, absl::string_view name, int32_t most,
                                    int32_t absent) {
  return fields.IntOr(name, 1, most, fields.Has(name) ? 0 : absent);
}

absl::Status ReadLatentSizes(const JsonFields& fields, LatentDescription& latent) {
  TANDEM_ASSIGN_OR_RETURN(latent.kv_rank, fields.IntOr("kv_lora_rank", 1, kMostRank, 512));
  TANDEM_ASSIGN_OR_RETURN(latent.query_rank, CountOrNone(fields, "q_lora_rank", kMostRank, 1536));
  TANDEM_ASSIGN_OR_RETURN(latent.unturned_dim, fields.IntOr("qk_nope_head_dim", 1, kMostLatentHeadDim, 128));
  TANDEM_ASSIGN_OR_RETURN(latent.turned_dim, fields.IntOr("qk_rope_head_dim", 2, kMostLatentHeadDim, 64));
  TANDEM_ASSIGN_OR_RETURN(latent.value_dim, fields.IntOr("v_head_dim", 1, kMostLatentHeadDim, 128));
  return latent.turned_dim % 2 == 0
             ? absl::OkStatus()
             : fields.Unexpected("qk_rope_head_dim", "an even number (rotary positions turn pairs)");
}

absl::Status ReadAttention(const JsonFields& fields, const Absences& absent, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectFixed(fields, {{"attention_bias", false}}));
  BlockDescription& block = config.block;
  LatentDescription& latent = block.latent;
  TANDEM_RETURN_IF_ERROR(ReadLatentSizes(fields, latent));
  // head_dim is what turns, until rotations have been read.
  TANDEM_RETURN_IF_ERROR(ReadSizes(
      fields,
      {.default_head_dim = latent.turned_dim, .default_context = absent.context, .head_dim_given = false},
      config));
  if (config.num_kv_heads != config.num_heads) {
    return fields.Unexpected("num_key_value_heads",
                             absl::StrCat("num_attention_heads, which is ", config.num_heads));
  }
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-6, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {}, config));
  config.num_kv_heads = 1;
  config.head_dim = latent.kv_rank + latent.turned_dim;
  block.rotary_dim = latent.turned_dim;
  const double magnitude = config.rope_scaling.all_dim_magnitude;
  block.attention_scale = magnitude * magnitude / std::sqrt(static_cast<double>(latent.query_dim()));
  return absl::OkStatus();
}

absl::Status ReadExperts(const JsonFields& fields, const Absences& absent, ModelConfig& config) {
  ExpertsDescription& experts = config.block.experts;
  if (absent.num_chosen == 0 && fields.Find("num_experts_per_tok") == nullptr) {
    return fields.Unexpected("num_experts_per_tok", "a number");
  }
  TANDEM_RETURN_IF_ERROR(
      ReadExpertCounts(fields, "n_routed_experts", absent.num_experts, absent.num_chosen, config));
  TANDEM_ASSIGN_OR_RETURN(experts.intermediate_size,
                          fields.IntOr("moe_intermediate_size", 1, kMostIntermediate, absent.expert_size));
  TANDEM_ASSIGN_OR_RETURN(const int32_t num_shared,
                          CountOrNone(fields, "n_shared_experts", kMostSharedExperts, absent.num_shared));
  experts.shared_size = num_shared * experts.intermediate_size;
  experts.shared_gate = false;
  TANDEM_ASSIGN_OR_RETURN(const double scale,
                          fields.NumberOr("routed_scaling_factor", 1e-3, 1e3, absent.scale));
  experts.scale = static_cast<float>(scale);
  TANDEM_ASSIGN_OR_RETURN(const int32_t every, fields.IntOr("moe_layer_freq", 1, 1024, 1));
  if (every != 1) return fields.Unsupported("moe_layer_freq", "1");
  TANDEM_ASSIGN_OR_RETURN(const int32_t num_dense,
                          fields.IntOr("first_k_dense_replace", 0, 1024, absent.num_dense));
  std::vector<bool> sparse;
  for (int32_t i = 0; i < config.num_layers; ++i) sparse.push_back(i >= num_dense);
  SetSparseLayers(sparse, config);
  config.block.names.shared_expert = "mlp.shared_experts.";
  return absl::OkStatus();
}

absl::Status ReadGroups(const JsonFields& fields, const Absences& absent, ExpertsDescription& experts) {
  TANDEM_ASSIGN_OR_RETURN(experts.num_groups, fields.IntOr("n_group", 1, kMostExperts, absent.num_groups));
  TANDEM_ASSIGN_OR_RETURN(experts.num_chosen_groups,
                          fields.IntOr("topk_group", 1, kMostExperts, absent.num_chosen_groups));
  if (experts.num_experts % experts.num_groups != 0 ||
      experts.num_experts / experts.num_groups < experts.group_places) {
    return fields.Unexpected("n_group", absl::StrCat("a number of groups of ", experts.group_places,
                                                     " or more experts each, of n_routed_experts, which is ",
                                                     experts.num_experts));
  }
  if (experts.num_chosen_groups > experts.num_groups) {
    return fields.Unexpected("topk_group", absl::StrCat("at most n_group, which is ", experts.num_groups));
  }
  const int32_t within = experts.num_experts / experts.num_groups * experts.num_chosen_groups;
  if (experts.num_chosen > within) {
    return fields.Unexpected(
        "num_experts_per_tok",
        absl::StrCat("at most the experts of ", experts.num_chosen_groups, " groups, which are ", within));
  }
  return absl::OkStatus();
}

absl::Status ExpectText(const JsonFields& fields, absl::string_view name, absl::string_view text) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> found, fields.String(name));
  return found.value_or(std::string(text)) == text ? absl::OkStatus() : fields.Unsupported(name, text);
}

absl::Status ReadRest(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  config.block.names.next_token_modules_are_layers = true;
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

}  // namespace

absl::Status ReadDeepSeekV2(const JsonFields& fields, ModelConfig& config) {
  const Absences absent;
  TANDEM_RETURN_IF_ERROR(ReadAttention(fields, absent, config));
  TANDEM_RETURN_IF_ERROR(ReadExperts(fields, absent, config));
  config.block.rotary_pairs_adjacent = true;
  ExpertsDescription& experts = config.block.experts;
  TANDEM_RETURN_IF_ERROR(ExpectText(fields, "scoring_func", "softmax"));
  TANDEM_RETURN_IF_ERROR(ExpectFixed(fields, {{"mlp_bias", false}, {"norm_topk_prob", false}}));
  experts.scores_add_up_to_one = false;
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> method, fields.String("topk_method"));
  if (method == "group_limited_greedy") {
    TANDEM_RETURN_IF_ERROR(ReadGroups(fields, absent, experts));
  } else if (method.value_or("greedy") != "greedy") {
    return fields.Unsupported("topk_method", "greedy, group_limited_greedy");
  }
  return ReadRest(fields, config);
}

absl::Status ReadDeepSeekV3(const JsonFields& fields, ModelConfig& config) {
  const Absences absent = {.context = 4096,
                           .num_experts = 256,
                           .num_chosen = 8,
                           .expert_size = 2048,
                           .num_shared = 1,
                           .num_dense = 3,
                           .num_groups = 8,
                           .num_chosen_groups = 4,
                           .scale = 2.5};
  TANDEM_RETURN_IF_ERROR(ReadAttention(fields, absent, config));
  TANDEM_RETURN_IF_ERROR(ReadExperts(fields, absent, config));
  TANDEM_ASSIGN_OR_RETURN(config.block.rotary_pairs_adjacent, fields.BoolOr("rope_interleave", true));
  ExpertsDescription& experts = config.block.experts;
  TANDEM_RETURN_IF_ERROR(ExpectText(fields, "scoring_func", "sigmoid"));
  TANDEM_RETURN_IF_ERROR(ExpectText(fields, "topk_method", "noaux_tc"));
  experts.score = ExpertScore::kSigmoid;
  experts.selection_bias = true;
  experts.group_places = 2;
  TANDEM_ASSIGN_OR_RETURN(experts.scores_add_up_to_one, fields.BoolOr("norm_topk_prob", true));
  TANDEM_RETURN_IF_ERROR(ReadGroups(fields, absent, experts));
  return ReadRest(fields, config);
}

}  // namespace tandem
