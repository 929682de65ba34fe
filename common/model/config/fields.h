#pragma once

#include <initializer_list>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Functions that families share for reading a config.json. Errors as in ParseModelConfig.

inline constexpr int32_t kMostContext = 1 << 24;
inline constexpr int32_t kMostHidden = 65536;
inline constexpr int32_t kMostIntermediate = 1 << 20;
inline constexpr int32_t kMostExperts = 4096;

// How a family spells sizes, and their defaults.
struct SizeFields {
  absl::string_view hidden = "hidden_size";
  absl::string_view layers = "num_hidden_layers";
  absl::string_view heads = "num_attention_heads";
  // Empty: the family has as many as heads.
  absl::string_view kv_heads = "num_key_value_heads";
  // Empty: not read here.
  absl::string_view intermediate = "intermediate_size";
  absl::string_view context = "max_position_embeddings";
  int32_t default_kv_heads = 0;  // 0: as many as heads.
  int32_t default_head_dim = 0;  // 0: hidden / heads.
  int32_t default_context = 2048;
  bool head_dim_given = true;  // Whether the family has a field head_dim.
};
absl::Status ReadSizes(const JsonFields& fields, const SizeFields& names, ModelConfig& config);

// The first of the names that the file has; if it has none, the first.
absl::string_view AnyOf(const JsonFields& fields, std::initializer_list<absl::string_view> names);

// rms_norm_eps, or as the family spells it.
absl::Status ReadEpsilon(const JsonFields& fields, absl::string_view name, double absent,
                         ModelConfig& config);

// One of transformers' names for an activation.
absl::StatusOr<Activation> ReadActivation(const JsonFields& fields, absl::string_view name,
                                          absl::string_view absent);
// Checks that hidden_act is silu.
absl::Status ExpectSilu(const JsonFields& fields);

// A field that would change the result if it had another value.
struct FixedField {
  absl::string_view name;
  bool value;
};
absl::Status ExpectFixed(const JsonFields& fields, std::initializer_list<FixedField> fixed);
// Checks that these fields are absent or null.
absl::Status ExpectAbsent(const JsonFields& fields, std::initializer_list<absl::string_view> names);

struct RopeFields {
  absl::string_view theta = "rope_theta";
  // Of a head, the share that turns; empty: the family always turns all.
  absl::string_view share = "";
  double default_theta = 10000.0;
  double default_share = 1.0;
};
// Rotary settings. Up to version 4, transformers writes `rope_theta` and `rope_scaling`; from 5 on,
// `rope_parameters`. If a file has both, a non-empty rope_scaling wins, and settings that the object does not
// have are looked up beside it. Call it after the sizes: YaRN and dynamic scaling lengthen max_context.
absl::Status ReadRope(const JsonFields& fields, const RopeFields& names, ModelConfig& config);
// The same, of one object such as rope_parameters.full_attention.
absl::Status ReadRopeObject(const JsonFields& fields, const JsonFields& rope, const RopeFields& names,
                            ModelConfig& config);

// For each layer, whether `layer_types` says sliding_attention; empty if there is no such field.
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const JsonFields& fields, int32_t num_layers);
// Gives sliding layers a window of this many positions, and the others none.
void SetWindows(const std::vector<bool>& slides, int32_t window, ModelConfig& config);

// The number of experts, in the field `name`, and num_experts_per_tok, how many of them a row takes.
absl::Status ReadExpertCounts(const JsonFields& fields, absl::string_view name, int32_t default_experts,
                              int32_t default_chosen, ModelConfig& config);
// Sets for each layer whether it has experts.
void SetSparseLayers(const std::vector<bool>& sparse, ModelConfig& config);

// tie_word_embeddings and eos_token_id.
absl::Status ReadEnds(const JsonFields& fields, bool tied_when_absent, ModelConfig& config);

}  // namespace tandem
