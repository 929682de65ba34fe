#pragma once

namespace tandem {

// From now on a crash of this process, or of one that it starts, leaves no core dump, and where the system
// pipes dumps to a program whatever the limit is (core(5)), one without memory. Debuggers may attach as
// before. What the system refuses is logged.
void KeepMemoryOutOfCoreDumps();

}  // namespace tandem
