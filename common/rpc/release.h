#pragma once

#include <memory>

namespace tandem {

// Releases a reference on a separate thread. A reaction must not destroy what a client call owns: the call's
// context may hold the last reference to the channel, and a channel that is destroyed on a thread that runs
// its own reactions waits for that very thread, and then frees objects that the thread still uses.
void ReleaseElsewhere(std::shared_ptr<void> object);

}  // namespace tandem
