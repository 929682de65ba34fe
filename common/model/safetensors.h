#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file.h"
#include "common/model/tensor_view.h"

namespace tandem {

// A tensor as stored in a file, of any dtype.
struct StoredTensor {
  absl::string_view dtype;  // The format's name: "I32". Static storage.
  std::vector<int64_t> shape;
  absl::string_view bytes;  // What dtype and shape need.
};

// A file in the safetensors format, mapped and checked:
//
//   8 bytes: length of the header, little endian | header: a JSON object | data
//
// The header maps each tensor's name to its dtype, shape and [begin, end) in the data. Open checks that every
// tensor has exactly the bytes that its dtype and shape need, and that tensors cover the data without
// overlap, hole or trailing bytes, so that a view never reaches outside the file.
//
// Owns the mapping: views are valid as long as the file object, or what it was moved to, lives.
class SafetensorsFile {
 public:
  // Errors name the path, the byte offset or the tensor, and what was expected: InvalidArgument for content
  // that breaks the format, and MappedFile's for files that cannot be mapped.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool Contains(absl::string_view name) const { return entries_.contains(name); }

  // NotFound if there is no such tensor; Unimplemented if weights cannot have its dtype here (the format also
  // has integers and 8-bit floats).
  absl::StatusOr<TensorView> Tensor(absl::string_view name) const;
  // NotFound when there is no such tensor.
  absl::StatusOr<StoredTensor> Stored(absl::string_view name) const;
  // Bytes of a tensor of that shape, in U8; errors likewise, InvalidArgument when it has another shape.
  absl::StatusOr<const char*> Bytes(absl::string_view name, const std::vector<int64_t>& shape) const;
  // A vector of 64-bit integers; errors likewise, InvalidArgument when it has another shape.
  absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view name, int64_t count) const;

 private:
  struct Entry {
    absl::string_view dtype;  // Static storage.
    std::vector<int64_t> shape;
    uint64_t begin = 0;  // In the file, not in the data.
    uint64_t end = 0;
  };

  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  absl::Status ReadHeader();
  absl::Status CheckCoverage(uint64_t data_begin) const;

  MappedFile file_;
  absl::flat_hash_map<std::string, Entry> entries_;
  std::vector<std::string> names_;
};

}  // namespace tandem
