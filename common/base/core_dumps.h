#pragma once

namespace tandem {

// Disables core dumps of this process and of processes that it starts. If the system pipes dumps to a program
// regardless of the limit (core(5)), the dump contains no memory. Debuggers may still attach. Logs failures.
void KeepMemoryOutOfCoreDumps();

}  // namespace tandem
