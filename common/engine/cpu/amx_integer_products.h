#pragma once

#include "common/engine/cpu/kernel_table.h"

namespace tandem {

// Products on AMX tiles with weights of 8 and 4 bits. They share their prepared inputs.
ProductKernel AmxInt8Product();
ProductKernel AmxInt4Product();

}  // namespace tandem
