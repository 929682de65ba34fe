#pragma once

#include "common/engine/cpu/kernel_table.h"

namespace tandem {

// Products of inputs of 8 bits with weights of 8 and 4 bits, by VPDPBUSD: the formats kW8A8 and kW4A8.
void SetVnniByteProducts(KernelTable* table);

}  // namespace tandem
