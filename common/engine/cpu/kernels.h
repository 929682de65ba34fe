#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/kernel_table.h"

namespace tandem {

enum class InstructionSet { kAuto, kPortable, kAvx2, kAvx512 };

// What this machine runs, best first; the last is always kPortable.
std::vector<InstructionSet> SupportedInstructionSets();

// The kernels of one instruction set (kAuto: the best). InvalidArgument when this machine lacks it.
absl::StatusOr<const KernelTable*> SelectKernels(InstructionSet instruction_set);

}  // namespace tandem
