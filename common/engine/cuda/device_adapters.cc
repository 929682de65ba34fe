#include "common/engine/cuda/device_adapters.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/engine/adapter_fit.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

constexpr uint32_t kFewestPlaces = 8;

// A pair, and the position of its outputs among those of a product.
struct PlacedPair {
  const LoraPair* pair = nullptr;
  uint32_t first_output = 0;
};

std::vector<PlacedPair> PairsOf(const LoraLayer& layer, uint32_t input, const ModelConfig& config) {
  const auto query = static_cast<uint32_t>(config.query_size());
  const auto kv = static_cast<uint32_t>(config.kv_size());
  switch (input) {
    case kQueryKeyValueInput:
      return {{&layer.query, 0}, {&layer.key, query}, {&layer.value, query + kv}};
    case kAttentionOutInput:
      return {{&layer.attention_out, 0}};
    case kGateUpInput:
      return {{&layer.gate, 0},
              {&layer.up, config.block.gated ? static_cast<uint32_t>(config.intermediate_size) : 0}};
    default:
      return {{&layer.down, 0}};
  }
}

}  // namespace

// What is copied to the device: an AdapterInput for each layer and input, then all matrices. Until the block
// is allocated, pointers to matrices are offsets from the first of their numbers.
struct DeviceAdapters::Layout {
  std::vector<AdapterInput> inputs;
  std::vector<float> floats;
  uint32_t width = 0;

  DeviceSpan<const float> Append(const TensorView& matrix, bool transposes) {
    const size_t begin = floats.size();
    const auto rows = static_cast<size_t>(matrix.shape[0]), columns = static_cast<size_t>(matrix.shape[1]);
    floats.resize(begin + rows * columns);
    const auto to = absl::MakeSpan(floats).subspan(begin);
    if (!transposes) {
      ConvertToFloat(matrix, to);
    } else {
      std::vector<float> row(columns);
      for (size_t i = 0; i < rows; ++i) {
        ConvertRowsToFloat(matrix, static_cast<int64_t>(i), 1, absl::MakeSpan(row));
        for (size_t j = 0; j < columns; ++j) to[j * rows + i] = row[j];
      }
    }
    // An offset, not a pointer yet.
    return {reinterpret_cast<const float*>(begin * sizeof(float)), rows * columns};
  }

  // Appends the rows of every pair's `a`. Neighbouring pairs may share one `a`, which is then appended once.
  AdapterInput InputOf(absl::Span<const PlacedPair> pairs) {
    AdapterInput input;
    const void* last = nullptr;
    std::vector<const TensorView*> reductions;
    for (const PlacedPair& placed : pairs) {
      const LoraPair& pair = *placed.pair;
      if (!pair.exists()) continue;
      const auto rank = static_cast<uint32_t>(pair.a.shape[0]);
      const bool is_shared = last == pair.a.data;
      last = pair.a.data;
      AdapterPart& part = input.parts[input.num_parts++];
      part.scale = pair.scale;
      part.first_reduced = is_shared ? input.num_reduced - rank : input.num_reduced;
      part.num_reduced = rank;
      part.first_output = placed.first_output;
      part.num_outputs = static_cast<uint32_t>(pair.b.shape[0]);
      part.b = Append(pair.b, /*transposes=*/true);
      if (is_shared) continue;
      input.num_reduced += rank;
      reductions.push_back(&pair.a);
    }
    for (const TensorView* const a : reductions) {
      const DeviceSpan<const float> rows = Append(*a, /*transposes=*/false);
      if (input.a.empty()) input.a.data = rows.data;
      input.a.size += rows.size;
    }
    width = std::max(width, input.num_reduced);
    return input;
  }
};

absl::StatusOr<AdapterId> DeviceAdapters::Add(const LoraAdapter& adapter) {
  TANDEM_RETURN_IF_ERROR(CheckAdapterFits(adapter, config_));
  Layout layout;
  for (const LoraLayer& layer : adapter.layers()) {
    for (uint32_t input = 0; input < kAdapterInputs; ++input) {
      layout.inputs.push_back(layout.InputOf(PairsOf(layer, input, config_)));
    }
  }
  const auto free =
      std::find_if(held_.begin(), held_.end(), [](const Held& each) { return each.memory == nullptr; });
  const auto place = static_cast<uint32_t>(free - held_.begin());
  TANDEM_RETURN_IF_ERROR(MakeRoom(place));
  TANDEM_ASSIGN_OR_RETURN(held_[place], Upload(layout));
  TANDEM_RETURN_IF_ERROR(
      ops_->Upload(table_.data + place, &held_[place].inputs, sizeof(DeviceSpan<const AdapterInput>)));
  TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  width_ = std::max(width_, layout.width);
  places_[++last_] = place;
  return last_;
}

absl::StatusOr<DeviceAdapters::Held> DeviceAdapters::Upload(const Layout& layout) {
  const uint64_t input_bytes = layout.inputs.size() * sizeof(AdapterInput);
  const uint64_t float_bytes = layout.floats.size() * sizeof(float);
  Held held;
  TANDEM_ASSIGN_OR_RETURN(held.memory, ops_->AllocateBlock(input_bytes + float_bytes, "an adapter"));
  char* const floats = static_cast<char*>(held.memory) + input_bytes;
  const auto move = [floats](DeviceSpan<const float>* span) {
    span->data = reinterpret_cast<const float*>(floats + reinterpret_cast<uintptr_t>(span->data));
  };
  std::vector<AdapterInput> inputs = layout.inputs;
  for (AdapterInput& input : inputs) {
    move(&input.a);
    for (uint32_t i = 0; i < input.num_parts; ++i) move(&input.parts[i].b);
  }
  held.inputs = {static_cast<const AdapterInput*>(held.memory), inputs.size()};
  absl::Status status = ops_->Upload(held.memory, inputs.data(), input_bytes);
  if (status.ok()) status = ops_->Upload(floats, layout.floats.data(), float_bytes);
  // The data being uploaded must not change or move until then.
  const absl::Status waited = ops_->Synchronize();
  if (status.ok()) status = waited;
  if (status.ok()) return held;
  ops_->FreeBlock(held.memory);
  return status;
}

absl::Status DeviceAdapters::MakeRoom(uint32_t place) {
  if (place == held_.size()) held_.emplace_back();
  if (place < table_.size) return absl::OkStatus();
  const uint64_t size = std::max<uint64_t>(kFewestPlaces, 2 * table_.size);
  TANDEM_ASSIGN_OR_RETURN(table_, ops_->Allocate<DeviceSpan<const AdapterInput>>(size, "adapters"));
  std::vector<DeviceSpan<const AdapterInput>> entries;
  for (const Held& each : held_) entries.push_back(each.inputs);
  TANDEM_RETURN_IF_ERROR(
      ops_->Upload(table_.data, entries.data(), entries.size() * sizeof(DeviceSpan<const AdapterInput>)));
  return ops_->Synchronize();
}

absl::Status DeviceAdapters::Drop(AdapterId adapter) {
  const auto found = places_.find(adapter);
  if (found == places_.end()) {
    return absl::NotFoundError(absl::StrCat("adapter ", adapter, ": this engine does not hold it"));
  }
  // Waits until no kernel reads the adapter any more.
  TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  Held& held = held_[found->second];
  ops_->FreeBlock(held.memory);
  held = {};
  places_.erase(found);
  return absl::OkStatus();
}

}  // namespace tandem
