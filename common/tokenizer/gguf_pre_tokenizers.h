#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace tandem {

// What a name in a GGUF file's `tokenizer.ggml.pre` means, as steps of a tokenizer.json: the patterns of the
// models' own tokenizer.json, or where none of them is known, of llama.cpp (src/llama-vocab.cpp), which cut
// the text one after the other, each what the ones before left.
struct GgufPreTokenizer {
  absl::string_view name;
  absl::Span<const char* const> patterns;
  bool composes = false;  // Text is normalized to NFC.
  bool ignores_merges = false;
  bool adds_bos = false;  // If the file does not say.
};

// Null for a name that is not known.
const GgufPreTokenizer* FindGgufPreTokenizer(absl::string_view name);

absl::Span<const GgufPreTokenizer> GgufPreTokenizers();

// The pre_tokenizer of a tokenizer.json that cuts text so.
nlohmann::json DescribePreTokenizer(const GgufPreTokenizer& pre_tokenizer);

// Of messages: "default, gpt-2, ...".
std::string GgufPreTokenizerNames();

}  // namespace tandem
