#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/cpu/packed_matrix.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/model/coded_rows.h"
#include "common/model/quantized_grid.h"
#include "common/model/quantized_matrix.h"
#include "common/model/tensor_view.h"

namespace tandem {

// Random codes of a Coding.
class RandomCodes final : public QuantizedMatrix {
 public:
  // `only`: all values.
  RandomCodes(const Coding& coding, int64_t outputs, int64_t inputs, uint32_t seed,
              std::optional<int> only = std::nullopt)
      : QuantizedMatrix(outputs, inputs, "codes", {}), coding_(coding), rows_(outputs, inputs) {
    std::mt19937 bits(seed);
    for (int64_t output = 0; output < outputs; ++output) {
      for (int64_t unit = 0; unit < rows_.num_units; ++unit) {
        const auto at = static_cast<size_t>(output * rows_.num_units + unit);
        rows_.units[at] = Unit(&bits);
        rows_.minimum_units[at] = Unit(&bits);
      }
      for (int64_t group = 0; group < rows_.num_groups; ++group) {
        const auto at = static_cast<size_t>(output * rows_.num_groups + group);
        const auto unit =
            static_cast<size_t>(output * rows_.num_units + group * CodedRows::kGroup / Coding::kUnitInputs);
        const bool repeats = !coding.is_fine && group % 2 == 1;
        rows_.scales[at] = repeats ? rows_.scales[at - 1] : Scale(rows_.units[unit], &bits);
        if (coding.has_minimums) {
          rows_.minimums[at] = repeats ? rows_.minimums[at - 1] : Scale(rows_.minimum_units[unit], &bits);
        }
        if (coding.has_four_bits) {
          rows_.zeros[at] = repeats ? rows_.zeros[at - 1] : static_cast<int8_t>(bits() % 17);
        }
      }
      for (int64_t k = 0; k < inputs; ++k) {
        const auto group = static_cast<size_t>(output * rows_.num_groups + k / CodedRows::kGroup);
        const int code = static_cast<int>(bits() % (1u << coding.bits));
        int value = code - (coding.is_unsigned ? 0 : 1 << (coding.bits - 1));
        if (coding.has_four_bits) value = code % 16 - rows_.zeros[group];
        // Of floats all but those that are no numbers, which are equal to nothing.
        if (coding.is_float && (value & 0x7f) == 0x7f) value = 0;
        rows_.values[static_cast<size_t>(output * inputs + k)] = static_cast<int8_t>(only.value_or(value));
      }
    }
  }

  void ReadOutputs(int64_t first, int64_t count, absl::Span<float> numbers) const override {
    for (size_t i = 0; i < static_cast<size_t>(count * num_inputs()); ++i) {
      const size_t at = static_cast<size_t>(first * num_inputs()) + i;
      const auto inputs = static_cast<size_t>(num_inputs());
      const size_t group =
          at / inputs * static_cast<size_t>(rows_.num_groups) + at % inputs / CodedRows::kGroup;
      const float value = coding_.is_float ? Float8ToFloat(static_cast<uint8_t>(rows_.values[at]))
                                           : static_cast<float>(rows_.values[at]);
      numbers[i] = value * rows_.scales[group] - rows_.minimums[group];
    }
  }
  Coding coding() const override { return coding_; }
  void ReadCodes(int64_t first, int64_t count, int64_t place, CodedRows* rows) const override {
    const auto copy = [&](const auto& from, auto* to) {
      const size_t width = from.size() / static_cast<size_t>(num_outputs());
      std::copy_n(from.begin() + static_cast<int64_t>(static_cast<size_t>(first) * width),
                  static_cast<size_t>(count) * width, to->begin() + place * static_cast<int64_t>(width));
    };
    copy(rows_.values, &rows->values);
    copy(rows_.zeros, &rows->zeros);
    copy(rows_.scales, &rows->scales);
    copy(rows_.minimums, &rows->minimums);
    copy(rows_.units, &rows->units);
    copy(rows_.minimum_units, &rows->minimum_units);
  }

  TensorView view() const {
    TensorView view = {.dtype = TensorView::DType::kQuantized, .shape = {num_outputs(), num_inputs()}};
    view.data = codes();
    view.quantized = this;
    return view;
  }

 private:
  static float Number(std::mt19937* bits) {
    return std::uniform_real_distribution<float>(-0.02f, 0.02f)(*bits);
  }
  // Of ten bits, so that its small multiples are exact.
  static float Unit(std::mt19937* bits) { return std::nearbyint(Number(bits) * 0x1p14f) * 0x1p-18f; }
  // What coding_.scales can store.
  float Scale(float unit, std::mt19937* bits) const {
    const float number = Number(bits);
    switch (coding_.scales) {
      case Coding::Scales::kFloat:
        return number;
      case Coding::Scales::kHalf:  // Ten bits of mantissa, above the least exponent.
        return std::nearbyint(number * 0x1p14f) * 0x1p-18f;
      case Coding::Scales::kBfloat16:
        return std::nearbyint(number * 0x1p12f) * 0x1p-12f;
      case Coding::Scales::kUnits:
        break;
    }
    return unit * static_cast<float>(static_cast<int>((*bits)() % 256) - 128);
  }

  const Coding coding_;
  CodedRows rows_;
};

// Rows of inputs that are the same each time, [num_rows, depth].
inline std::vector<float> RandomInputs(uint32_t num_rows, uint32_t depth) {
  std::mt19937 bits(5);
  std::normal_distribution<float> number;
  std::vector<float> inputs(size_t{num_rows} * depth);
  for (float& input : inputs) input = number(bits);
  return inputs;
}

// A matrix' products with these rows, [num_rows, outputs].
inline std::vector<float> ProductsOf(const PackedMatrix& matrix, const KernelTable& kernels,
                                     uint32_t num_rows, const std::vector<float>& from) {
  auto inputs = ProductInputs::Allocate(kernels, num_rows, matrix.depth()).value();
  std::vector<float> outputs(size_t{num_rows} * matrix.num_outputs(), -1.0f);
  std::vector<float*> rows;
  for (uint32_t row = 0; row < num_rows; ++row) {
    std::copy_n(from.begin() + row * matrix.depth(), matrix.depth(), inputs.floats().row(row));
    rows.push_back(outputs.data() + size_t{row} * matrix.num_outputs());
  }
  inputs.Prepare(matrix.kernel(), {0, num_rows}, {0, matrix.depth()});
  matrix.Multiply(Share{0, matrix.num_tiles()}, inputs, num_rows, rows.data());
  return outputs;
}

inline std::vector<float> Products(const PackedMatrix& matrix, const KernelTable& kernels,
                                   uint32_t num_rows) {
  return ProductsOf(matrix, kernels, num_rows, RandomInputs(num_rows, matrix.depth()));
}

}  // namespace tandem
