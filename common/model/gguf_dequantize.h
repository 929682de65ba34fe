#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/gguf/gguf_file.h"
#include "common/model/coded_rows.h"

namespace tandem {

// The coding for blocks of a quantised type; not for F32, F16 and BF16.
Coding CodingOf(GgufType type);

// Decodes whole blocks of a quantised type, exactly as the format defines them; products of three factors are
// rounded in the order of llama.cpp's dequantisation: value * scale - minimum. `rows` is for one output of
// block_size inputs for each block_bytes of `bytes`, or that is its output `row`.
void ReadBlocks(GgufType type, absl::string_view bytes, int64_t row, CodedRows* rows);

// The numbers of these blocks, block_size for each block_bytes of `bytes`.
void DequantizeBlocks(GgufType type, absl::string_view bytes, absl::Span<float> out);

}  // namespace tandem
