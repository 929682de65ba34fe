#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// An index into a model's logits. Signed, as in every tokenizer library; a valid id is >= 0 and below the
// logits width, and whoever takes one from outside checks that.
using TokenId = int32_t;
using TokenIds = std::vector<TokenId>;

}  // namespace tandem
