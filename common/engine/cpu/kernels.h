#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cpu/kernel_table.h"

namespace tandem {

enum class InstructionSet {
  kAuto,
  kPortable,
  kPortableBf16,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmx,
  kNeon,
  kNeonI8mm
};

// The names on command lines, "auto" first.
std::vector<std::string> InstructionSetNames();
// Parses one of those names; InvalidArgument for anything else.
absl::StatusOr<InstructionSet> ParseInstructionSet(absl::string_view name);
absl::string_view InstructionSetName(InstructionSet instruction_set);

// The instruction sets that this machine runs, best first. The last two are always kPortable and
// kPortableBf16.
std::vector<InstructionSet> SupportedInstructionSets();

// The kernels of one instruction set (kAuto: the best). InvalidArgument when this machine lacks it.
absl::StatusOr<const KernelTable*> SelectKernels(InstructionSet instruction_set);

}  // namespace tandem
