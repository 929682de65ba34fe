#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file.h"
#include "nlohmann/json.hpp"

namespace tandem {

// How a tensor of a GGUF file stores its numbers: in blocks of so many numbers and bytes. The values are the
// format's.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIq2Xxs = 16,
  kIq2Xs = 17,
  kIq3Xxs = 18,
  kIq1S = 19,
  kIq4Nl = 20,
  kIq3S = 21,
  kIq2S = 22,
  kIq4Xs = 23,
  kIq1M = 29,
  kBF16 = 30,
  kTq1_0 = 34,
  kTq2_0 = 35,
  kMxfp4 = 39,
};

struct GgufTypeInfo {
  GgufType type;
  absl::string_view name;
  int64_t block_size;  // numbers
  int64_t block_bytes;
};
const GgufTypeInfo& InfoOf(GgufType type);
// All of them.
absl::Span<const GgufTypeInfo> GgufTypes();

// A tensor as stored in the file.
struct GgufTensor {
  GgufType type = GgufType::kF32;
  std::vector<int64_t>
      shape;  // Row-major: the reverse of the file's, whose first dimension is the innermost.
  absl::string_view bytes;
};

// A file in the GGUF format, versions 2 and 3, mapped and checked:
//
//   "GGUF" | version | number of tensors, of keys | keys and values | names, shapes, types, offsets | data
//
// all little endian. Open checks every length and count against the file's size before it is used, that rows
// are whole blocks, and that tensors lie in the data without overlap, so that no view reaches outside of it.
//
// A file may be the first of several (NAME-00001-of-00003.gguf), the others of which have only tensors.
//
// Owns the mappings: views are valid as long as the file object, or what it was moved to, lives.
class GgufFile {
 public:
  // Whether a model's path is that of such a file, not of a folder.
  static bool IsPath(absl::string_view path);

  // Opens a file, and those that it is continued in. Errors name the path, the byte or the tensor, and what
  // was expected: InvalidArgument for content that breaks the format, Unimplemented for types of tensors,
  // versions and byte orders that are not supported, and MappedFile's.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // Of the first file.
  const std::string& path() const { return file_.path(); }
  // An object of all keys; integers, floats, booleans, strings, and arrays of one of these.
  const nlohmann::json& metadata() const { return metadata_; }
  const std::vector<std::string>& names() const { return names_; }  // Sorted.
  // Null when there is no such tensor.
  const GgufTensor* Find(absl::string_view name) const;

 private:
  class Reader;
  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}

  // Opens the other files of a split one, and adds their tensors.
  absl::Status AddParts();

  MappedFile file_;
  std::vector<MappedFile> parts_;
  nlohmann::json metadata_ = nlohmann::json::object();
  absl::flat_hash_map<std::string, GgufTensor> tensors_;
  std::vector<std::string> names_;
};

}  // namespace tandem
