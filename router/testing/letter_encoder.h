#pragma once

#include "router/models/served_model.h"

namespace tandem::router::testing {

// A model for tests, named "letters": 256 token ids, each byte of a text its own token, 32 tokens of context.
// Texts begin with token 1; a chat is 1, then each message as 2 and its content, then 3. Roles other than
// "system", "user" and "assistant" are InvalidArgument. Outputs have calls in Mistral's format, and
// reasoning.
ServedModel LetterModel();

}  // namespace tandem::router::testing
