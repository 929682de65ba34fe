#include "common/engine/cpu/rotary_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem {
namespace {

double Llama3Frequency(const RopeScaling& scaling, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double context = scaling.original_context;
  if (wavelength < context / scaling.high_frequency_factor) return frequency;
  if (wavelength > context / scaling.low_frequency_factor) return frequency / scaling.factor;
  const double smooth = (context / wavelength - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// The index, in halves of `dim`, of the frequency that makes `turns` turns in the original context.
double PlaceOfTurns(const RopeScaling& scaling, double turns, double theta, int32_t dim) {
  return dim * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

// Peng et al., YaRN, 2023, equations 17 to 23. The ramp runs over indices, as in the authors' code.
double YarnFrequency(const RopeScaling& scaling, double theta, int32_t dim, uint32_t place,
                     double frequency) {
  double low = PlaceOfTurns(scaling, scaling.beta_fast, theta, dim);
  double high = PlaceOfTurns(scaling, scaling.beta_slow, theta, dim);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((place - low) / (high - low), 0.0, 1.0);
  return frequency / scaling.factor * ramp + frequency * (1 - ramp);
}

std::vector<double> Frequencies(double theta, const RopeScaling& scaling, int32_t dim) {
  if (scaling.kind == RopeScaling::Kind::kDynamic && dim > 2) {
    // For a text of original_context * factor tokens.
    const double stretch = scaling.factor * scaling.factor - scaling.factor + 1;
    theta *= std::pow(stretch, dim / (dim - 2.0));
  }
  std::vector<double> frequencies(static_cast<size_t>(dim) / 2);
  for (uint32_t i = 0; i < frequencies.size(); ++i) {
    double& frequency = frequencies[i];
    frequency = std::pow(theta, -2.0 * i / dim);
    switch (scaling.kind) {
      case RopeScaling::Kind::kNone:
      case RopeScaling::Kind::kDynamic:
        break;
      case RopeScaling::Kind::kLinear:
        frequency = frequency / scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        frequency = Llama3Frequency(scaling, frequency);
        break;
      case RopeScaling::Kind::kYarn:
        frequency = YarnFrequency(scaling, theta, dim, i, frequency);
        break;
      case RopeScaling::Kind::kLongRope:
        frequency = frequency / scaling.divisors[i];
        break;
    }
  }
  return frequencies;
}

}  // namespace

absl::StatusOr<RotaryTable> RotaryTable::Build(const ModelConfig& config, uint32_t num_positions) {
  return Reserve(config, config.rope_theta, config.rope_scaling, num_positions);
}

absl::StatusOr<RotaryTable> RotaryTable::BuildLocal(const ModelConfig& config, uint32_t num_positions) {
  return Reserve(config, config.block.local_rope_theta.value_or(config.rope_theta), {}, num_positions);
}

absl::StatusOr<RotaryTable> RotaryTable::Reserve(const ModelConfig& config, double theta,
                                                 const RopeScaling& scaling, uint32_t num_positions) {
  RotaryTable table;
  table.num_positions_ = num_positions;
  table.half_ = static_cast<uint32_t>(config.rotary_dim()) / 2;
  table.adjacent_ = config.block.rotary_pairs_adjacent;
  TANDEM_ASSIGN_OR_RETURN(table.data_, AlignedBuffer::Allocate(uint64_t{num_positions} * 2 * table.half_,
                                                               sizeof(float), "rotations"));
  table.frequencies_ = Frequencies(theta, scaling, config.rotary_dim());
  table.size_ = scaling.attention_factor;
  return table;
}

void RotaryTable::ExtendTo(uint32_t num_positions) {
  if (num_positions <= num_computed_) return;
  // Some more, so that few steps of a request have to.
  constexpr uint32_t kAtOnce = 64;
  const uint32_t end = std::min(num_positions_, (num_positions - 1) / kAtOnce * kAtOnce + kAtOnce);
  float* next = data_.data<float>() + size_t{num_computed_} * 2 * half_;
  for (uint32_t position = num_computed_; position < end; ++position) {
    for (double frequency : frequencies_)
      *next++ = static_cast<float>(size_ * std::cos(position * frequency));
    for (double frequency : frequencies_)
      *next++ = static_cast<float>(size_ * std::sin(position * frequency));
  }
  num_computed_ = std::max(num_computed_, end);
}

absl::Span<const float> RotaryTable::values() const {
  return {data_.data<float>(), size_t{num_computed_} * 2 * half_};
}

void RotaryTable::Rotate(uint32_t position, float* head) const {
  // Nothing overlaps, so the compiler may process several elements at a time.
  const float* __restrict cosines = data_.data<float>() + size_t{position} * 2 * half_;
  const float* __restrict sines = cosines + half_;
  if (adjacent_) {
    for (uint32_t i = 0; i < half_; ++i, head += 2) {
      const float first = head[0];
      const float second = head[1];
      head[0] = first * cosines[i] - second * sines[i];
      head[1] = second * cosines[i] + first * sines[i];
    }
    return;
  }
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
