#include "common/model/quantized_matrix.h"

#include "common/base/mapped_pages.h"

namespace tandem {

uint64_t QuantizedMatrix::bytes_of(int64_t numbers) const {
  uint64_t stored = 0;
  for (const absl::string_view part : stored_) stored += part.size();
  const auto of = static_cast<uint64_t>(numbers / num_inputs_);
  const auto all = static_cast<uint64_t>(num_outputs_);
  return stored / all * of + stored % all * of / all;
}

void QuantizedMatrix::Fetch() const {
  for (const absl::string_view part : stored_) FetchMappedPages(part.data(), part.size());
}

void QuantizedMatrix::Release() const {
  for (const absl::string_view part : stored_) DropMappedPages(part.data(), part.size());
}

}  // namespace tandem
