#pragma once

namespace tandem {

// Whether this process may use AMX with bfloat16 and 8-bit integers: the processor has it, and the kernel has
// granted the process the tile registers' state, which is requested once.
bool AmxAvailable();

}  // namespace tandem
