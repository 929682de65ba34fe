#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// An index into a model's logits. Signed, as in every tokenizer library. A valid id is >= 0 and below the
// width of the logits; check this for ids from outside.
using TokenId = int32_t;
using TokenIds = std::vector<TokenId>;

}  // namespace tandem
