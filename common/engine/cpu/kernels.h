#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cpu/kernel_table.h"

namespace tandem {

enum class InstructionSet { kAuto, kPortable, kAvx2, kAvx512, kAmxSplit, kAmx, kNeon, kNeonBf16, kNeonI8mm };

// As on command lines, "auto" first.
std::vector<std::string> InstructionSetNames();
// By one of those names; InvalidArgument for anything else.
absl::StatusOr<InstructionSet> ParseInstructionSet(absl::string_view name);
absl::string_view InstructionSetName(InstructionSet instruction_set);

// What this machine runs, best first; the last is always kPortable.
std::vector<InstructionSet> SupportedInstructionSets();

// The kernels of one instruction set (kAuto: the best). InvalidArgument when this machine lacks it.
absl::StatusOr<const KernelTable*> SelectKernels(InstructionSet instruction_set);

}  // namespace tandem
