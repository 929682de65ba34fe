#pragma once

#include "common/gguf/gguf_file.h"
#include "common/model/quantized_matrix.h"

namespace tandem {

// A matrix of a quantised type as it lies in a GGUF file, [outputs, inputs] in whole blocks.
class QuantizedBlocks final : public QuantizedMatrix {
 public:
  // `tensor` has two dimensions. Unless `head_dim` is 0, of each so many outputs the one in place 2j is the
  // j-th, and that in place 2j + 1 the one half of them behind it: how the format keeps Llama's queries and
  // keys. It divides the outputs.
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
