#include "common/engine/cpu/kernels.h"

#include <algorithm>
#ifdef TANDEM_ARM_KERNELS
#include <sys/auxv.h>
#endif

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/cpu/amx_permission.h"
#include "common/engine/cpu/product_arithmetic.h"

namespace tandem {
namespace {

constexpr InstructionSet kInstructionSets[] = {
    InstructionSet::kAuto,   InstructionSet::kAmx,      InstructionSet::kAvx512Bf16,
    InstructionSet::kAvx512, InstructionSet::kAvx2,     InstructionSet::kNeonI8mm,
    InstructionSet::kNeon,   InstructionSet::kPortable, InstructionSet::kPortableBf16};

#ifdef TANDEM_X86_KERNELS
bool HasVnni() {
  return __builtin_cpu_supports("avx512vnni");
}

bool HasBf16() {
  return __builtin_cpu_supports("avx512bf16") && HasVnni();
}

// Whether VDPBF16PS is faster than float32 multiply-adds. It does the work of two multiply-adds. AMD's
// processors run it almost as often as one, Intel's a quarter as often. This looks at the maker and does not
// measure, because the choice of arithmetic must not change from one start to the next. The instruction must
// also round as Intel documents it.
bool HasFastBf16() {
  static const bool kIsFast =
      HasBf16() && __builtin_cpu_is("amd") && MultipliesBf16Pairs(Avx512Bf16Kernels());
  return kIsFast;
}
#endif

}  // namespace

absl::string_view InstructionSetName(InstructionSet instruction_set) {
  switch (instruction_set) {
    case InstructionSet::kAuto:
      return "auto";
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kPortableBf16:
      return "portable-bf16";
    case InstructionSet::kAvx512Bf16:
      return "avx512-bf16";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kAmx:
      return "amx";
    case InstructionSet::kNeon:
      return "neon";
    case InstructionSet::kNeonI8mm:
      return "neon-i8mm";
  }
  return "unknown";
}

std::vector<std::string> InstructionSetNames() {
  std::vector<std::string> names;
  for (const InstructionSet each : kInstructionSets) names.emplace_back(InstructionSetName(each));
  return names;
}

absl::StatusOr<InstructionSet> ParseInstructionSet(absl::string_view name) {
  for (const InstructionSet each : kInstructionSets) {
    if (name == InstructionSetName(each)) return each;
  }
  return absl::InvalidArgumentError(absl::StrCat("instruction set \"", name, "\", expected one of ",
                                                 absl::StrJoin(InstructionSetNames(), ", ")));
}

std::vector<InstructionSet> SupportedInstructionSets() {
  std::vector<InstructionSet> supported;
#ifdef TANDEM_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (HasBf16() && AmxAvailable()) supported.push_back(InstructionSet::kAmx);
    if (HasFastBf16()) supported.push_back(InstructionSet::kAvx512Bf16);
    supported.push_back(InstructionSet::kAvx512);
    if (HasBf16() && !HasFastBf16()) supported.push_back(InstructionSet::kAvx512Bf16);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    supported.push_back(InstructionSet::kAvx2);
  }
#endif
#ifdef TANDEM_ARM_KERNELS
  const unsigned long features = getauxval(AT_HWCAP2);
  // Processors that have one have the other.
  if ((features & HWCAP2_BF16) != 0 && (features & HWCAP2_I8MM) != 0) {
    supported.push_back(InstructionSet::kNeonI8mm);
  }
  supported.push_back(InstructionSet::kNeon);
#endif
  supported.push_back(InstructionSet::kPortable);
  supported.push_back(InstructionSet::kPortableBf16);
  return supported;
}

absl::StatusOr<const KernelTable*> SelectKernels(InstructionSet instruction_set) {
  const std::vector<InstructionSet> supported = SupportedInstructionSets();
  if (instruction_set == InstructionSet::kAuto) instruction_set = supported.front();
  if (std::find(supported.begin(), supported.end(), instruction_set) == supported.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this machine does not have the instruction set ", InstructionSetName(instruction_set)));
  }
  switch (instruction_set) {
#ifdef TANDEM_X86_KERNELS
    case InstructionSet::kAmx:
      return &AmxKernels();
    case InstructionSet::kAvx512Bf16:
      return HasFastBf16() ? &Avx512Bf16Kernels() : &Avx512Bf16MultiplyAddKernels();
    case InstructionSet::kAvx512:
      return HasVnni() ? &Avx512VnniKernels() : &Avx512Kernels();
    case InstructionSet::kAvx2:
      return &Avx2Kernels();
#endif
#ifdef TANDEM_ARM_KERNELS
    case InstructionSet::kNeonI8mm:
      return &NeonI8mmKernels();
    case InstructionSet::kNeon:
      return &NeonKernels();
#endif
    case InstructionSet::kPortableBf16:
      return &PortableBf16Kernels();
    default:
      return &PortableKernels();
  }
}

}  // namespace tandem
