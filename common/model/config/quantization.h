#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/config/json_fields.h"

namespace tandem {

// How a model's folder stores matrices that are not plain floats, as config.json's `quantization_config`
// says. Their tensors tell which matrices these are: a plain "NAME.weight" is read as such. A number is (code
// - zero point) * scale.
struct Quantization {
  // The tensors of a matrix NAME [outputs, inputs], and how codes lie in them. Integers of less than 32 bits
  // stand side by side in I32 words, the first one in the lowest bits where nothing else is said.
  enum class Layout {
    // AutoAWQ's "gemm": qweight [inputs, outputs / 8], of whose 8 outputs the order in a word is 0, 2, 4, 6,
    // 1, 3, 5, 7; qzeros [groups, outputs / 8] likewise; scales [groups, outputs].
    kAwq,
    // GPTQ: qweight [inputs / n, outputs] with n codes in a word; qzeros [groups, outputs / n]; scales
    // [groups, outputs]; perhaps g_idx [inputs], the group of each input.
    kGptq,
    // compressed-tensors: weight_packed [outputs, inputs / n]; weight_scale [outputs, groups]; weight_shape;
    // perhaps weight_zero_point [outputs / n, groups] and weight_g_idx [inputs].
    kPacked,
    // weight [outputs, inputs] in I8 or F8_E4M3; weight_scale or weight_scale_inv [outputs, inputs], each
    // divided by what shares one; perhaps weight_zero_point [as the scales] in I8.
    kPlain,
  };
  std::string method;  // `quant_method`, for messages.
  std::string format;  // compressed-tensors: its `format`.
  Layout layout = Layout::kAwq;
  int32_t bits = 4;
  bool is_float = false;  // kPlain: F8_E4M3, which has no zero points.
  // How many outputs and inputs share a scale, the last ones perhaps fewer; 0: all of them.
  int32_t outputs_per_scale = 1;
  int32_t inputs_per_scale = 0;
  // Every zero point is in the middle of the codes, 2^(bits - 1) of unsigned ones, though kGptq's files have
  // them.
  bool symmetric = false;
  bool zeros_less_one = false;  // kGptq: qzeros holds what is one less (`checkpoint_format` gptq).
  bool needs_group_index = false;
};

// Reads and checks `quantization_config`, given as `fields`. InvalidArgument if it contradicts itself or is
// no configuration. Unimplemented, with what is supported, for a method or variant that is not supported.
absl::StatusOr<Quantization> ReadQuantization(const JsonFields& fields);

}  // namespace tandem
