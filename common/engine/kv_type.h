#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The number type of an engine's keys and values, chosen when the engine is created. It affects outputs like
// a part of the model: they are only reproducible with the same type.
enum class KvType {
  kAuto,  // bf16; on a CPU as kv_choice.h says.
  kF32,
  kBf16,  // The nearest, ties to even.
  // 8 bits and, for each token, layer and KV head, a scale for its key and one for its value: the greatest
  // magnitude in it is 127 scales. On CPUs.
  kInt8,
};

// The names on command lines, "auto" first.
std::vector<std::string> KvTypeNames();
// Parses one of those names; InvalidArgument for anything else.
absl::StatusOr<KvType> ParseKvType(absl::string_view name);
absl::string_view KvTypeName(KvType type);
// What kAuto stands for where no model is known; any other type itself.
KvType ResolvedKvType(KvType type);

// InvalidArgument for a type that engines on GPUs do not support; the CPU engine supports all.
absl::Status ValidateGpuKvType(KvType type);

}  // namespace tandem
