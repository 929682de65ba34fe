#include "common/model/testing/quantized_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

std::string QuantizedFolder() {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/quantized");
}

// The half of a number that is one, and normal.
uint16_t HalfBits(float number) {
  if (number == 0) return 0;
  int exponent = 0;
  const float fraction = std::frexp(std::abs(number), &exponent);  // In [0.5, 1).
  const auto mantissa = static_cast<uint16_t>(std::ldexp(fraction, 11)) & 0x3ff;
  return static_cast<uint16_t>((number < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | mantissa);
}

template <typename T>
void Append(T value, std::string& bytes) {
  char raw[sizeof(value)];
  std::memcpy(raw, &value, sizeof(value));
  bytes.append(raw, sizeof(value));
}

void AppendFloat(const std::string& type, float value, std::string& bytes) {
  if (type == "F32") return Append(value, bytes);
  if (type == "F16") return Append(HalfBits(value), bytes);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  Append(static_cast<uint16_t>(bits >> 16), bytes);
}

void AppendElement(const std::string& type, const nlohmann::json& how, uint64_t index, uint64_t i,
                   std::string& bytes) {
  const uint64_t x = Mix64((uint64_t{1} << 40) + (index << 24) + i);
  if (how.contains("levels")) {
    const nlohmann::json& levels = how["levels"];
    const int bits = levels.at(2).get<int>();
    const auto level = static_cast<int64_t>(2 * (x >> (64 - bits)) + 1) - (int64_t{1} << bits);
    return AppendFloat(
        type, levels.at(0).get<float>() + levels.at(1).get<float>() * static_cast<float>(level), bytes);
  }
  if (how.contains("random")) {
    if (type == "I32") return Append(static_cast<uint32_t>(x >> 32), bytes);
    auto byte = static_cast<uint8_t>(x >> 56);
    if (type == "F8_E4M3" && (byte & 0x7f) == 0x7f) byte &= 0xfe;
    return Append(byte, bytes);
  }
  const int64_t value =
      how.contains("values") ? how["values"].at(i).get<int64_t>() : how.at("constant").get<int64_t>();
  if (type == "I64") return Append(value, bytes);
  if (type == "I32") return Append(static_cast<int32_t>(value), bytes);
  if (type == "I8" || type == "U8" || type.starts_with("F8_"))
    return Append(static_cast<int8_t>(value), bytes);
  return AppendFloat(type, static_cast<float>(value), bytes);
}

}  // namespace

std::vector<std::string> QuantizedModelNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(QuantizedFolder())) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json QuantizedGolden(const std::string& name) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(QuantizedFolder(), "/", name, ".json"), 1 << 20);
  if (!text.ok()) {
    ADD_FAILURE() << text.status();
    return nullptr;
  }
  return nlohmann::json::parse(*text);
}

std::string QuantizedWeights(const nlohmann::json& golden) {
  nlohmann::json header;
  std::string data;
  uint64_t index = 0;
  for (const nlohmann::json& tensor : golden.at("tensors")) {
    uint64_t count = 1;
    for (const nlohmann::json& size : tensor.at(2)) count *= size.get<uint64_t>();
    const size_t begin = data.size();
    for (uint64_t i = 0; i < count; ++i) {
      AppendElement(tensor.at(1).get<std::string>(), tensor.at(3), index, i, data);
    }
    header[tensor.at(0).get<std::string>()] = {
        {"dtype", tensor.at(1)}, {"shape", tensor.at(2)}, {"data_offsets", {begin, data.size()}}};
    ++index;
  }
  const std::string text = header.dump();
  std::string bytes;
  Append(uint64_t{text.size()}, bytes);
  return absl::StrCat(bytes, text, data);
}

void WriteQuantizedModel(const nlohmann::json& golden, const TemporaryFolder& folder) {
  folder.Write("config.json", golden.at("config").dump());
  folder.Write("model.safetensors", QuantizedWeights(golden));
}

nlohmann::json& QuantizedTensorEntry(nlohmann::json& golden, absl::string_view name) {
  for (nlohmann::json& tensor : golden.at("tensors")) {
    if (tensor.at(0).get_ref<const std::string&>() == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  static nlohmann::json none;
  return none = {"", "F32", {0}, {{"constant", 0}}};
}

}  // namespace tandem
