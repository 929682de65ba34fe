#pragma once

#include "common/engine/cpu/kernel_table.h"

namespace tandem {

// Products on AMX tiles with weights of 8 and 4 bits.
void SetAmxIntegerProducts(KernelTable* table);

}  // namespace tandem
