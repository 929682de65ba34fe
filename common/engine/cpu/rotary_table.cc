#include "common/engine/cpu/rotary_table.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem {
namespace {

double ScaleFrequency(const RopeScaling& scaling, double frequency) {
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return frequency;
    case RopeScaling::Kind::kLinear:
      return frequency / scaling.factor;
    case RopeScaling::Kind::kLlama3:
      break;
  }
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double context = scaling.original_context;
  if (wavelength < context / scaling.high_frequency_factor) return frequency;
  if (wavelength > context / scaling.low_frequency_factor) return frequency / scaling.factor;
  const double smooth = (context / wavelength - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

absl::StatusOr<RotaryTable> RotaryTable::Build(const ModelConfig& config, uint32_t num_positions) {
  RotaryTable table;
  table.half_ = static_cast<uint32_t>(config.head_dim) / 2;
  TANDEM_ASSIGN_OR_RETURN(table.data_, AlignedBuffer::Allocate(uint64_t{num_positions} * 2 * table.half_,
                                                               sizeof(float), "rotations"));
  std::vector<double> frequencies(table.half_);
  for (uint32_t i = 0; i < table.half_; ++i) {
    frequencies[i] =
        ScaleFrequency(config.rope_scaling, std::pow(config.rope_theta, -2.0 * i / config.head_dim));
  }
  float* next = table.data_.data<float>();
  for (uint32_t position = 0; position < num_positions; ++position) {
    for (double frequency : frequencies) *next++ = static_cast<float>(std::cos(position * frequency));
    for (double frequency : frequencies) *next++ = static_cast<float>(std::sin(position * frequency));
  }
  return table;
}

void RotaryTable::Rotate(uint32_t position, float* head) const {
  // Nothing overlaps, so that the compiler may take several elements at a time.
  const float* __restrict cosines = data_.data<float>() + size_t{position} * 2 * half_;
  const float* __restrict sines = cosines + half_;
  float* __restrict firsts = head;
  float* __restrict seconds = head + half_;
  for (uint32_t i = 0; i < half_; ++i) {
    const float first = firsts[i];
    const float second = seconds[i];
    firsts[i] = first * cosines[i] - second * sines[i];
    seconds[i] = second * cosines[i] + first * sines[i];
  }
}

}  // namespace tandem
