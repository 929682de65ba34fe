#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// Byte-level BPE (GPT-2) writes each byte as one printable character: printable Latin-1 bytes stand for
// themselves, the other 68 bytes are U+0100 and following, in order.

// The character of each byte of `bytes`, appended to `out` as UTF-8.
void AppendByteAlphabet(absl::string_view bytes, std::string& out);

// The bytes that `text` encodes; nullopt if it contains a character outside the alphabet.
std::optional<std::string> BytesFromAlphabet(absl::string_view text);

}  // namespace tandem
