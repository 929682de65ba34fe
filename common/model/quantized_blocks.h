#pragma once

#include "common/gguf/gguf_file.h"
#include "common/model/quantized_matrix.h"

namespace tandem {

// A matrix of a quantised type, as stored in a GGUF file: [outputs, inputs] in whole blocks.
class QuantizedBlocks final : public QuantizedMatrix {
 public:
  // `tensor` must have two dimensions. Unless `head_dim` is 0, outputs are stored in the order of RowInPairs,
  // in groups of `head_dim`, as the format stores Llama's queries and keys. `head_dim` must divide the number
  // of outputs.
  explicit QuantizedBlocks(const GgufTensor& tensor, int64_t head_dim = 0);

  void ReadOutputs(int64_t first, int64_t count, absl::Span<float> numbers) const override;
  Coding coding() const override;
  void ReadCodes(int64_t first, int64_t count, int64_t place, CodedRows* rows) const override;

 private:
  absl::string_view BytesOf(int64_t output) const;

  const GgufType type_;
  const absl::string_view bytes_;
  const int64_t head_dim_;
};

}  // namespace tandem
