#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/gguf/gguf_file.h"

namespace tandem {

// The numbers of whole blocks of a quantised type, exactly as the format defines them, but that products of
// three factors are rounded in the order of llama.cpp's dequantisation. `out` holds block_size numbers for
// each block_bytes of `bytes`. Not for F32, F16 and BF16.
void DequantizeBlocks(GgufType type, absl::string_view bytes, absl::Span<float> out);

}  // namespace tandem
