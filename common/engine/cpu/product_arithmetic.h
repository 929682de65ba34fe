#pragma once

#include <string>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/kv_type.h"

namespace tandem {

// Whether products of `kernels` with bfloat16 weights have the bits of products of bfloat16 pairs
// (kernel_table.h) on this machine. The processor decides how an instruction adds its terms, so this
// multiplies numbers of every size, for which another rounding or order would give other bits, and compares.
// Takes some milliseconds. The machine must have the instructions.
bool MultipliesBf16Pairs(const KernelTable& kernels);

// Names what decides the bits of an engine's outputs in addition to model and weight type, to distinguish
// verifiers whose outputs may differ: "bf16-pairs" for `amx` and `avx512-bf16` if MultipliesBf16Pairs,
// otherwise the name of the kernels; followed by the type of keys and values if it is not float32.
std::string ArithmeticName(const KernelTable& kernels, KvType kv_type = KvType::kAuto);

}  // namespace tandem
