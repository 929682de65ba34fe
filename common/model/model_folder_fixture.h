#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

namespace tandem {

// For tests: a folder that is removed with its content.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // The folder itself when `name` is empty.
  std::string PathOf(absl::string_view name) const;
  // Returns the file's path.
  std::string Write(absl::string_view name, absl::string_view content) const;
  void Remove(absl::string_view name) const;

 private:
  std::string path_;
};

// The bytes of a safetensors file with this header, whatever it says.
std::string SafetensorsBytes(absl::string_view header, absl::string_view data);

// Name, shape of a BF16 tensor.
using TensorShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

// A valid file of BF16 tensors, one after the other, filled with a pattern.
std::string SafetensorsBytes(const TensorShapes& tensors);

// A Llama of one layer: hidden 8, 2 heads of 4 over 1 key/value head, intermediate 6, vocabulary 10, untied.
nlohmann::json SmallConfig();
TensorShapes SmallTensors();

}  // namespace tandem
