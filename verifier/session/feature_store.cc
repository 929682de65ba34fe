#include "verifier/session/feature_store.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"
#include "common/speculation/simd_clones.h"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little, "features are little endian on the wire");

// Loops of this constant length are what the compiler vectorises.
constexpr size_t kLanes = 32;

inline uint16_t NearestBf16Bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // Rounding could carry a NaN's payload over into infinity; a quiet one stays what it is.
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : rounded);
}

// The bits of a bfloat16's magnitude, by which finite numbers are ordered; 0 of what is no finite number.
inline uint16_t MagnitudeBits(uint16_t bits) {
  const auto magnitude = static_cast<uint16_t>(bits & 0x7fff);
  return magnitude < 0x7f80 ? magnitude : uint16_t{0};
}

// A number in steps of the scale, to the nearest whole one, ties to even. `steps`: how many steps make 1, so
// that the largest magnitude makes 127 or, by what it is rounded to, a little more, which is 127 again.
inline int8_t StepsOf(uint16_t bits, float steps) {
  const uint32_t wide = uint32_t{bits} << 16;
  const uint32_t finite = (wide & 0x7f800000u) != 0x7f800000u ? wide : 0u;
  // 1.5 * 2^23 leaves no room for a fraction, and the sum's last byte is the whole number's.
  constexpr float kWhole = 12582912.0f;
  return static_cast<int8_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(finite) * steps + kWhole));
}

TANDEM_SIMD_CLONES
uint16_t LargestMagnitudeBits(const uint16_t* values, size_t count) {
  uint16_t lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = std::max(lanes[lane], MagnitudeBits(values[i + lane]));
    }
  }
  for (; i < count; ++i) lanes[0] = std::max(lanes[0], MagnitudeBits(values[i]));
  return *std::max_element(lanes, lanes + kLanes);
}

TANDEM_SIMD_CLONES
void QuantiseToSteps(const uint16_t* values, size_t count, float steps, int8_t* to) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    int8_t bytes[kLanes];  // Bytes that might be those that are read would not be vectorised.
    for (size_t lane = 0; lane < kLanes; ++lane) bytes[lane] = StepsOf(values[i + lane], steps);
    std::memcpy(to + i, bytes, sizeof bytes);
  }
  for (; i < count; ++i) to[i] = StepsOf(values[i], steps);
}

// A state as FEATURE_TYPE_INT8 has it. What is not a finite number counts as 0: a scale that is none would
// make all numbers of the state useless. So do numbers of which 127 steps could not be told.
void AppendInt8(const uint16_t* values, uint32_t hidden_size, std::string* states) {
  constexpr float kLeast = 0x1p-100f;
  const float largest = std::bit_cast<float>(uint32_t{LargestMagnitudeBits(values, hidden_size)} << 16);
  const float scale = largest < kLeast ? 0.0f : largest / 127.0f;
  states->append(reinterpret_cast<const char*>(&scale), sizeof scale);
  if (scale == 0.0f) {
    states->append(hidden_size, '\0');
    return;
  }
  // By way of the stack: a string can grow only by bytes that are written first.
  int8_t bytes[1024];
  for (uint32_t i = 0; i < hidden_size; i += sizeof bytes) {
    const size_t count = std::min<size_t>(sizeof bytes, hidden_size - i);
    QuantiseToSteps(values + i, count, 127.0f / largest, bytes);
    states->append(reinterpret_cast<const char*>(bytes), count);
  }
}

}  // namespace

TANDEM_SIMD_CLONES
void RoundToBf16(absl::Span<const float> from, uint16_t* to) {
  const float* const values = from.data();
  const size_t count = from.size();
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) to[i + lane] = NearestBf16Bits(values[i + lane]);
  }
  for (; i < count; ++i) to[i] = NearestBf16Bits(values[i]);
}

FeatureStore::Options FeatureStore::OptionsFor(const Engine& engine, uint64_t max_bytes) {
  return {.num_blocks = engine.num_blocks(),
          .hidden_size = static_cast<uint32_t>(engine.config().hidden_size),
          .num_layers = static_cast<uint32_t>(engine.config().num_layers),
          .max_bytes = max_bytes};
}

bool FeatureStore::FitsAny(const Options& options) {
  const uint64_t bytes = BytesPerState(options);
  return options.hidden_size > 0 && bytes < UINT64_MAX && bytes <= options.max_bytes;
}

uint64_t FeatureStore::BytesPerState(const Options& options) {
  return CheckedMultiply(uint64_t{options.num_blocks} * kBlockTokens,
                         uint64_t{options.hidden_size} * sizeof(uint16_t))
      .value_or(UINT64_MAX);
}

const FeatureStore::Plane* FeatureStore::Find(uint32_t layer) const {
  const auto found = std::find_if(planes_.begin(), planes_.end(),
                                  [layer](const Plane& plane) { return plane.layer == layer; });
  return found == planes_.end() ? nullptr : &*found;
}

absl::Status FeatureStore::Check(const FeatureNeeds& needs) const {
  if (needs.num_states() == 0 || needs.layers.size() > kMaxFeatureLayers) {
    return absl::InvalidArgumentError(absl::StrCat("features of ", needs.layers.size(),
                                                   " layers, expected at most ", kMaxFeatureLayers,
                                                   ", and at least one state"));
  }
  for (size_t i = 0; i < needs.layers.size(); ++i) {
    if (needs.layers[i] > options_.num_layers) {
      return absl::InvalidArgumentError(absl::StrCat("features after layer ", needs.layers[i],
                                                     ", expected at most ", options_.num_layers,
                                                     ", the target's layers"));
    }
    if (i > 0 && needs.layers[i] <= needs.layers[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat("features after layer ", needs.layers[i],
                                                     " behind layer ", needs.layers[i - 1],
                                                     ", expected ascending ones"));
    }
  }
  const uint64_t row_bytes = FeatureRowBytes(needs.type, needs.num_states(), options_.hidden_size);
  if (row_bytes > kMaxFeatureBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("features of ", row_bytes,
                                                     " bytes for each token, expected at most ",
                                                     kMaxFeatureBytes, ", what a message may hold"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> FeatureStore::Keep(const FeatureNeeds& needs) {
  TANDEM_RETURN_IF_ERROR(Check(needs));
  std::vector<uint32_t> missing;
  ForEachState(needs, [&](uint32_t layer) {
    if (Find(layer) == nullptr) missing.push_back(layer);
  });
  const auto new_layers = static_cast<size_t>(
      std::count_if(missing.begin(), missing.end(), [](uint32_t layer) { return layer != kFinalNorm; }));
  if (layers_.size() + new_layers > kMaxFeatureLayers) {
    return absl::ResourceExhaustedError(absl::StrCat("features after ", layers_.size() + new_layers,
                                                     " layers, with those that other heads need, ",
                                                     "expected at most ", kMaxFeatureLayers));
  }
  const uint64_t slots = uint64_t{options_.num_blocks} * kBlockTokens;
  const uint64_t plane = BytesPerState(options_);
  const std::optional<uint64_t> total = CheckedMultiply<uint64_t>(plane, planes_.size() + missing.size());
  if (!total.has_value() || *total > options_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "features of ", planes_.size() + missing.size(), " states of ", options_.hidden_size, " numbers for ",
        slots, " tokens, expected at most ", options_.max_bytes, " bytes of them"));
  }
  std::vector<Plane> added;
  for (uint32_t layer : missing) {
    TANDEM_ASSIGN_OR_RETURN(ReservedMemory values, ReservedMemory::Reserve(plane));
    added.push_back({.layer = layer,
                     .values = std::move(values),
                     .written = std::vector<uint64_t>(static_cast<size_t>((slots + 63) / 64))});
  }
  for (Plane& state : added) {
    if (state.layer == kFinalNorm) {
      final_norm_ = true;
    } else {
      layers_.insert(std::upper_bound(layers_.begin(), layers_.end(), state.layer), state.layer);
    }
    const auto behind = std::find_if(planes_.begin(), planes_.end(),
                                     [&](const Plane& other) { return other.layer > state.layer; });
    planes_.insert(behind, std::move(state));
  }
  return !missing.empty();
}

const uint16_t* FeatureStore::ValuesOf(const Plane& plane, SlotId slot) const {
  return static_cast<const uint16_t*>(plane.values.data()) + size_t{slot} * options_.hidden_size;
}

void FeatureStore::Write(SlotId slot, const FeatureRequest& computed) {
  assert(slot / kBlockTokens < options_.num_blocks);
  const size_t hidden = options_.hidden_size;
  const uint64_t bit = uint64_t{1} << (slot % 64);
  for (Plane& plane : planes_) {
    size_t place = computed.layers.size();
    bool asked = computed.final_norm;
    if (plane.layer != kFinalNorm) {
      const auto found = std::find(computed.layers.begin(), computed.layers.end(), plane.layer);
      place = static_cast<size_t>(found - computed.layers.begin());
      asked = found != computed.layers.end();
    }
    if (!asked) {
      plane.written[slot / 64] &= ~bit;
      continue;
    }
    RoundToBf16(absl::MakeConstSpan(computed.states + place * hidden, hidden),
                static_cast<uint16_t*>(plane.values.data()) + size_t{slot} * hidden);
    plane.written[slot / 64] |= bit;
  }
}

bool FeatureStore::Has(SlotId slot, const FeatureNeeds& needs) const {
  bool has = true;
  ForEachState(needs, [&](uint32_t layer) {
    const Plane* const plane = Find(layer);
    has = has && plane != nullptr && (plane->written[slot / 64] >> (slot % 64) & 1) != 0;
  });
  return has;
}

void FeatureStore::AppendRow(SlotId slot, const FeatureNeeds& needs, std::string* states) const {
  assert(Has(slot, needs));
  ForEachState(needs, [&](uint32_t layer) {
    const uint16_t* const values = ValuesOf(*Find(layer), slot);
    if (needs.type == FeatureType::kInt8) {
      AppendInt8(values, options_.hidden_size, states);
    } else {
      states->append(reinterpret_cast<const char*>(values), size_t{options_.hidden_size} * sizeof *values);
    }
  });
}

uint64_t FeatureStore::reserved_bytes() const {
  uint64_t bytes = 0;
  for (const Plane& plane : planes_) bytes += plane.values.size();
  return bytes;
}

}  // namespace tandem
