#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/coded_rows.h"

namespace tandem {

// A matrix [outputs, inputs] whose numbers are computed from integers or small floats, and scales, in files.
// Immutable, so thread-safe.
class QuantizedMatrix {
 public:
  virtual ~QuantizedMatrix() = default;
  QuantizedMatrix(const QuantizedMatrix&) = delete;
  QuantizedMatrix& operator=(const QuantizedMatrix&) = delete;

  int64_t num_outputs() const { return num_outputs_; }
  int64_t num_inputs() const { return num_inputs_; }
  // The start of the integers or floats.
  const char* codes() const { return codes_; }

  // The numbers of some outputs, [count, num_inputs].
  virtual void ReadOutputs(int64_t first, int64_t count, absl::Span<float> numbers) const = 0;
  virtual Coding coding() const = 0;
  // The same numbers as coding() says, if it is_coded, into outputs `place` to `place` + `count` of `rows`,
  // whose outputs have num_inputs. Writes all that `rows` has of them.
  virtual void ReadCodes(int64_t first, int64_t count, int64_t place, CodedRows* rows) const = 0;

  // Bytes in the files of `numbers` numbers (whole outputs), in proportion.
  uint64_t bytes_of(int64_t numbers) const;
  // Makes the system read the matrix from its files into memory, if it is not there.
  void Fetch() const;
  // Releases the mapped memory of the parts that were read.
  void Release() const;

 protected:
  // `stored`: all its parts in files.
  QuantizedMatrix(int64_t num_outputs, int64_t num_inputs, const char* codes,
                  std::vector<absl::string_view> stored)
      : num_outputs_(num_outputs), num_inputs_(num_inputs), codes_(codes), stored_(std::move(stored)) {}

 private:
  const int64_t num_outputs_;
  const int64_t num_inputs_;
  const char* const codes_;
  const std::vector<absl::string_view> stored_;
};

}  // namespace tandem
