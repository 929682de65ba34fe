#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// The bytes of a GGUF file, for tests.
class GgufWriter {
 public:
  void AddString(absl::string_view key, absl::string_view value);
  void AddUint32(absl::string_view key, uint32_t value);
  void AddFloat(absl::string_view key, float value);
  void AddBool(absl::string_view key, bool value);
  void AddStrings(absl::string_view key, const std::vector<std::string>& values);
  void AddInts(absl::string_view key, const std::vector<int32_t>& values);
  void AddFloats(absl::string_view key, const std::vector<float>& values);
  // `shape` row-major; `type` as the format numbers it.
  void AddTensor(absl::string_view name, const std::vector<int64_t>& shape, uint32_t type,
                 absl::string_view bytes);

  std::string Bytes() const;

 private:
  std::string keys_;
  std::string tensors_;
  std::string data_;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
};

}  // namespace tandem
