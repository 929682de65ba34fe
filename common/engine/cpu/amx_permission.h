#pragma once

namespace tandem {

// Whether this process may use AMX with bfloat16 and 8-bit integers: the processor has it, and the kernel
// granted the tile registers' state to the process, which is asked for once.
bool AmxAvailable();

}  // namespace tandem
