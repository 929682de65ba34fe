#pragma once

#include <memory>

namespace tandem {

// Gives up a reference on a thread kept for that. What a client call owns must not be destroyed by a
// reaction: its context may hold the last reference to the channel, and a channel that dies on one of the
// threads that run its own reactions waits for that very thread, then frees what the thread still uses.
void ReleaseElsewhere(std::shared_ptr<void> object);

}  // namespace tandem
