#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// How the tokenizer would spell `forced`, bytes that come next, after the tokens `before`: as it would spell
// the text of both, from where a border of its tokens falls between the two; where none does, as it spells
// `forced` alone. Marks of calls (call_marks.h) are spelled by their tokens. Only a guess: what the target
// spells it with is the target's choice. Empty where the bytes are not whole characters or have no spelling.
TokenIds SpellForced(const Tokenizer& tokenizer, absl::Span<const TokenId> before, absl::string_view forced);

}  // namespace tandem
