#include "common/engine/cpu/kernels.h"

#include <algorithm>

namespace tandem {

std::vector<InstructionSet> SupportedInstructionSets() {
  std::vector<InstructionSet> supported;
#ifdef TANDEM_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    supported.push_back(InstructionSet::kAvx512);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    supported.push_back(InstructionSet::kAvx2);
  }
#endif
  supported.push_back(InstructionSet::kPortable);
  return supported;
}

absl::StatusOr<const KernelTable*> SelectKernels(InstructionSet instruction_set) {
  const std::vector<InstructionSet> supported = SupportedInstructionSets();
  if (instruction_set == InstructionSet::kAuto) instruction_set = supported.front();
  if (std::find(supported.begin(), supported.end(), instruction_set) == supported.end()) {
    return absl::InvalidArgumentError("this machine does not have the instruction set asked for");
  }
  switch (instruction_set) {
#ifdef TANDEM_X86_KERNELS
    case InstructionSet::kAvx512:
      return &Avx512Kernels();
    case InstructionSet::kAvx2:
      return &Avx2Kernels();
#endif
    default:
      return &PortableKernels();
  }
}

}  // namespace tandem
