#pragma once

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "nlohmann/json.hpp"

namespace tandem {

// The tokenizer in a GGUF file's keys, as an equivalent tokenizer.json and tokenizer_config.json.
struct GgufTokenizer {
  nlohmann::json definition;
  nlohmann::json config;
};

// Reads the kinds "gpt2" (byte-level BPE, with llama.cpp's name for its pre-tokenizer) and "llama"
// (SentencePiece, whose merges follow from its scores). Unimplemented, with key and name, for others.
absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const GgufFile& file);

}  // namespace tandem
