#include "common/gguf/testing/gguf_writer.h"

#include <type_traits>

namespace tandem {
namespace {

template <typename T>
void AppendNumber(T value, std::string& out) {
  static_assert(std::is_arithmetic_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendString(absl::string_view text, std::string& out) {
  AppendNumber<uint64_t>(text.size(), out);
  out.append(text.data(), text.size());
}

void AppendKey(absl::string_view key, uint32_t type, std::string& out) {
  AppendString(key, out);
  AppendNumber(type, out);
}

}  // namespace

void GgufWriter::AddString(absl::string_view key, absl::string_view value) {
  AppendKey(key, 8, keys_);
  AppendString(value, keys_);
  ++num_keys_;
}

void GgufWriter::AddUint32(absl::string_view key, uint32_t value) {
  AppendKey(key, 4, keys_);
  AppendNumber(value, keys_);
  ++num_keys_;
}

void GgufWriter::AddFloat(absl::string_view key, float value) {
  AppendKey(key, 6, keys_);
  AppendNumber(value, keys_);
  ++num_keys_;
}

void GgufWriter::AddBool(absl::string_view key, bool value) {
  AppendKey(key, 7, keys_);
  AppendNumber<uint8_t>(value ? 1 : 0, keys_);
  ++num_keys_;
}

void GgufWriter::AddStrings(absl::string_view key, const std::vector<std::string>& values) {
  AppendKey(key, 9, keys_);
  AppendNumber<uint32_t>(8, keys_);
  AppendNumber<uint64_t>(values.size(), keys_);
  for (const std::string& value : values) AppendString(value, keys_);
  ++num_keys_;
}

void GgufWriter::AddInts(absl::string_view key, const std::vector<int32_t>& values) {
  AppendKey(key, 9, keys_);
  AppendNumber<uint32_t>(5, keys_);
  AppendNumber<uint64_t>(values.size(), keys_);
  for (int32_t value : values) AppendNumber(value, keys_);
  ++num_keys_;
}

void GgufWriter::AddFloats(absl::string_view key, const std::vector<float>& values) {
  AppendKey(key, 9, keys_);
  AppendNumber<uint32_t>(6, keys_);
  AppendNumber<uint64_t>(values.size(), keys_);
  for (float value : values) AppendNumber(value, keys_);
  ++num_keys_;
}

void GgufWriter::AddTensor(absl::string_view name, const std::vector<int64_t>& shape, uint32_t type,
                           absl::string_view bytes) {
  AppendString(name, tensors_);
  AppendNumber<uint32_t>(static_cast<uint32_t>(shape.size()), tensors_);
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    AppendNumber<uint64_t>(static_cast<uint64_t>(*size), tensors_);
  }
  AppendNumber(type, tensors_);
  AppendNumber<uint64_t>(data_.size(), tensors_);
  data_.append(bytes.data(), bytes.size());
  data_.resize((data_.size() + 31) / 32 * 32);
  ++num_tensors_;
}

std::string GgufWriter::Bytes() const {
  std::string out = "GGUF";
  AppendNumber<uint32_t>(3, out);
  AppendNumber(num_tensors_, out);
  AppendNumber(num_keys_, out);
  out += keys_ + tensors_;
  out.resize((out.size() + 31) / 32 * 32);
  return out + data_;
}

}  // namespace tandem
