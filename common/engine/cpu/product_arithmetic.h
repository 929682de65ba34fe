#pragma once

#include <string>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/kv_type.h"

namespace tandem {

// Whether products of `kernels` with weights in bfloat16 have the bits of products of bfloat16 pairs
// (kernel_table.h), here and now: what an instruction does with its terms is the processor's. Multiplies some
// numbers of every size, which a rounding or an order other than the defined one would show in, and compares
// bits; takes some milliseconds. The machine has to have the instructions.
bool MultipliesBf16Pairs(const KernelTable& kernels);

// What decides the bits of an engine's outputs beside model and weight type, to tell verifiers apart whose
// outputs may differ: "bf16-pairs" for `amx` and `avx512-bf16`, where MultipliesBf16Pairs, else the name of
// the kernels; and behind it the type of keys and values that are not float32.
std::string ArithmeticName(const KernelTable& kernels, KvType kv_type = KvType::kAuto);

}  // namespace tandem
