#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// The tokenizer's spelling of the bytes `forced` after the tokens `before`. It is taken from the tokens of
// the joint text if a token border falls between the two, otherwise from `forced` alone. Marks of calls
// (call_marks.h) are spelled by their tokens. This is only a guess: the target may choose another spelling.
// Empty if the bytes are not whole characters or have no spelling.
TokenIds SpellForced(const Tokenizer& tokenizer, absl::Span<const TokenId> before, absl::string_view forced);

}  // namespace tandem
