#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/engine/cuda/kernels/block.h"
#include "common/model/model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

// Draft heads and the outputs of reference implementations for them, in the form that a GPU takes.
namespace tandem {

inline std::string GoldenHead(const std::string& name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/heads/", name);
}

// A copy of the head with all numbers rounded to bfloat16: the files have float32, which a GPU does not take.
// If there is no such head, the test fails and the result is null.
inline std::shared_ptr<const Model> LoadInBf16(const std::string& folder) {
  const auto config = ReadFile(folder + "/config.json", 1 << 20);
  std::string file = "model.safetensors";
  auto bytes = ReadFile(absl::StrCat(folder, "/", file), 16 << 20);
  if (!bytes.ok()) {
    // The name that Medusa's authors use.
    file = "medusa_lm_head.safetensors";
    bytes = ReadFile(absl::StrCat(folder, "/", file), 16 << 20);
  }
  if (!config.ok() || !bytes.ok()) {
    ADD_FAILURE() << config.status() << ", " << bytes.status();
    return nullptr;
  }
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes->data(), sizeof(header_size));
  nlohmann::json header = nlohmann::json::parse(bytes->substr(8, header_size));
  const std::string data = bytes->substr(8 + header_size);
  std::string rounded;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = tensor["data_offsets"][0];
    const size_t end = tensor["data_offsets"][1];
    const size_t to = rounded.size();
    if (tensor["dtype"] == "F32") {
      for (size_t at = begin; at < end; at += sizeof(float)) {
        float value = 0;
        std::memcpy(&value, data.data() + at, sizeof(value));
        const uint16_t bits = ToBf16(value).bits;
        rounded.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
      }
      tensor["dtype"] = "BF16";
    } else {
      rounded.append(data, begin, end - begin);
    }
    tensor["data_offsets"] = {to, rounded.size()};
  }
  const std::string text = header.dump();
  const uint64_t text_size = text.size();
  const TemporaryFolder copy;
  copy.Write("config.json", *config);
  copy.Write(file, absl::StrCat(std::string(reinterpret_cast<const char*>(&text_size), sizeof(text_size)),
                                text, rounded));
  auto model = Model::Load(copy.path());
  // A target's folder means its next-token module.
  if (model.ok() && !(*model)->config().head.has_value()) model = Model::LoadHead(copy.path(), *model);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// The numbers that are not null; null means minus infinity.
inline std::vector<float> FiniteNumbers(const nlohmann::json& values) {
  std::vector<float> numbers;
  for (const nlohmann::json& value : values) {
    if (!value.is_null()) numbers.push_back(value.get<float>());
  }
  return numbers;
}

}  // namespace tandem
