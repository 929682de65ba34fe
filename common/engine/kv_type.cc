#include "common/engine/kv_type.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

constexpr KvType kKvTypes[] = {KvType::kAuto, KvType::kF32, KvType::kBf16, KvType::kInt8};

}  // namespace

absl::string_view KvTypeName(KvType type) {
  switch (type) {
    case KvType::kAuto:
      return "auto";
    case KvType::kF32:
      return "f32";
    case KvType::kBf16:
      return "bf16";
    case KvType::kInt8:
      return "int8";
  }
  return "unknown";
}

KvType ResolvedKvType(KvType type) {
  return type == KvType::kAuto ? KvType::kBf16 : type;
}

std::vector<std::string> KvTypeNames() {
  std::vector<std::string> names;
  for (const KvType each : kKvTypes) names.emplace_back(KvTypeName(each));
  return names;
}

absl::StatusOr<KvType> ParseKvType(absl::string_view name) {
  for (const KvType each : kKvTypes) {
    if (name == KvTypeName(each)) return each;
  }
  return absl::InvalidArgumentError(absl::StrCat("type of keys and values \"", name, "\", expected one of ",
                                                 absl::StrJoin(KvTypeNames(), ", ")));
}

absl::Status ValidateGpuKvType(KvType type) {
  if (type == KvType::kAuto || type == KvType::kBf16) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("keys and values in ", KvTypeName(type),
                   " on a GPU, which has no such kernels; expected auto or bf16, or the device cpu"));
}

}  // namespace tandem
