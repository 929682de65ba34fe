#include "common/model/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
// The format's own bound.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;

struct DTypeSize {
  absl::string_view name;
  uint64_t bytes;
};
constexpr std::array<DTypeSize, 17> kDTypes = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
    {"C64", 8},
}};

// Builds "PATH: tensor "NAME": ..." errors.
struct TensorPlace {
  absl::string_view path;
  absl::string_view name;

  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor \"", PrintableText(name), "\": ", parts...));
  }
};

// JSON numbers with a sign, a fraction or more than 64 bits are not unsigned numbers to the parser.
std::optional<uint64_t> Unsigned(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

absl::StatusOr<DTypeSize> ReadDType(const Json& info, const TensorPlace& place) {
  const auto field = info.find("dtype");
  if (field == info.end() || !field->is_string()) return place.Error("expected a string \"dtype\"");
  const std::string& name = field->get_ref<const std::string&>();
  for (const DTypeSize& dtype : kDTypes) {
    if (dtype.name == name) return dtype;
  }
  return place.Error("dtype ", PrintableValue(*field), ", expected one of the format's, such as \"BF16\"");
}

// Also returns the number of elements, as checked.
absl::StatusOr<std::pair<std::vector<int64_t>, uint64_t>> ReadShape(const Json& info,
                                                                    const TensorPlace& place) {
  const auto field = info.find("shape");
  if (field == info.end() || !field->is_array()) return place.Error("expected a list \"shape\"");
  if (field->size() > kMaxRank) {
    return place.Error("shape of ", field->size(), " dimensions, expected at most ", kMaxRank);
  }
  std::vector<int64_t> shape;
  bool empty = false;
  int64_t product = 1;  // Of the sizes that are not zero, so that no part of the shape overflows either.
  for (const Json& element : *field) {
    const std::optional<uint64_t> size = Unsigned(element);
    if (!size.has_value() || *size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return place.Error("shape ", PrintableValue(*field), ", expected whole numbers from 0 to 2^63 - 1");
    }
    shape.push_back(static_cast<int64_t>(*size));
    if (*size == 0) {
      empty = true;
      continue;
    }
    const std::optional<int64_t> next = CheckedMultiply(product, shape.back());
    if (!next.has_value()) {
      return place.Error("shape ", PrintableValue(*field), ", expected fewer than 2^63 elements");
    }
    product = *next;
  }
  return std::make_pair(std::move(shape), empty ? 0 : static_cast<uint64_t>(product));
}

absl::StatusOr<std::pair<uint64_t, uint64_t>> ReadOffsets(const Json& info, uint64_t data_bytes,
                                                          const TensorPlace& place) {
  const auto field = info.find("data_offsets");
  if (field == info.end() || !field->is_array() || field->size() != 2) {
    return place.Error("expected \"data_offsets\" [begin, end]");
  }
  const std::optional<uint64_t> begin = Unsigned((*field)[0]);
  const std::optional<uint64_t> end = Unsigned((*field)[1]);
  if (!begin.has_value() || !end.has_value() || *begin > *end || *end > data_bytes) {
    return place.Error("data_offsets ", PrintableValue(*field),
                       ", expected 0 <= begin <= end <= ", data_bytes, ", the length of the data");
  }
  return std::make_pair(*begin, *end);
}

absl::Status CheckMetadata(const Json& metadata, const std::string& path) {
  bool valid = metadata.is_object();
  if (valid) {
    for (const Json& value : metadata) valid = valid && value.is_string();
  }
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": \"__metadata__\": expected an object of strings, found ", PrintableValue(metadata)));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SafetensorsFile file(std::move(mapped));
  TANDEM_RETURN_IF_ERROR(file.ReadHeader());
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  const absl::string_view bytes = file_.bytes();
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": ", bytes.size(), " bytes, expected at least ",
                                                   kLengthBytes, " for the header's length"));
  }
  uint64_t header_bytes = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  const uint64_t most = std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - kLengthBytes);
  if (header_bytes > most) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": byte 0: header of ", header_bytes,
                                                   " bytes, expected at most ", most, " (the file has ",
                                                   bytes.size(), ")"));
  }
  const absl::string_view header = bytes.substr(kLengthBytes, header_bytes);
  if (header.empty() || header[0] != '{') {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": byte 8: expected a header starting with '{'"));
  }
  TANDEM_ASSIGN_OR_RETURN(const Json json, ParseStrictJson(header, path(), kLengthBytes));
  const uint64_t data_begin = kLengthBytes + header_bytes;
  for (const auto& [name, info] : json.items()) {
    if (name == "__metadata__") {
      TANDEM_RETURN_IF_ERROR(CheckMetadata(info, path()));
      continue;
    }
    const TensorPlace place{path(), name};
    if (!info.is_object()) return place.Error("expected an object, found ", PrintableValue(info));
    TANDEM_ASSIGN_OR_RETURN(const DTypeSize dtype, ReadDType(info, place));
    TANDEM_ASSIGN_OR_RETURN(auto shape, ReadShape(info, place));
    TANDEM_ASSIGN_OR_RETURN(const auto offsets, ReadOffsets(info, bytes.size() - data_begin, place));
    const uint64_t found_bytes = offsets.second - offsets.first;
    if (CheckedMultiply(shape.second, dtype.bytes) != found_bytes) {
      return place.Error("data_offsets span ", found_bytes, " bytes, expected ", shape.second, " x ",
                         dtype.bytes, " for ", dtype.name, " ", ShapeText(shape.first));
    }
    entries_.emplace(name, Entry{dtype.name, std::move(shape.first), data_begin + offsets.first,
                                 data_begin + offsets.second});
    names_.push_back(name);
  }
  std::sort(names_.begin(), names_.end());
  return CheckCoverage(data_begin);
}

absl::Status SafetensorsFile::CheckCoverage(uint64_t data_begin) const {
  struct Range {
    uint64_t begin, end;
    absl::string_view name;
  };
  std::vector<Range> ranges;
  ranges.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) ranges.push_back({entry.begin, entry.end, name});
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = data_begin;
  for (const Range& range : ranges) {
    if (range.begin != covered) {
      return TensorPlace{path(), range.name}.Error("starts at byte ", range.begin, " of the file, expected ",
                                                   covered, " (", range.begin < covered ? "overlap" : "hole",
                                                   ")");
    }
    covered = range.end;
  }
  if (covered != file_.bytes().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path(), ": byte ", covered, ": the last tensor ends here, expected ",
                     "the end of the file, which is at ", file_.bytes().size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> SafetensorsFile::Tensor(absl::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat(path(), ": tensor \"", name, "\" is missing"));
  }
  const Entry& entry = found->second;
  TensorView view;
  if (entry.dtype == "F32") {
    view.dtype = TensorView::DType::kF32;
  } else if (entry.dtype == "F16") {
    view.dtype = TensorView::DType::kF16;
  } else if (entry.dtype == "BF16") {
    view.dtype = TensorView::DType::kBF16;
  } else {
    return absl::UnimplementedError(
        absl::StrCat(path(), ": tensor \"", name, "\": dtype ", entry.dtype, ", expected F32, F16 or BF16"));
  }
  view.shape = entry.shape;
  view.data = file_.bytes().data() + entry.begin;
  return view;
}

absl::StatusOr<StoredTensor> SafetensorsFile::Stored(absl::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat(path(), ": tensor \"", name, "\" is missing"));
  }
  const Entry& entry = found->second;
  return StoredTensor{.dtype = entry.dtype,
                      .shape = entry.shape,
                      .bytes = file_.bytes().substr(entry.begin, entry.end - entry.begin)};
}

absl::StatusOr<const char*> SafetensorsFile::Bytes(absl::string_view name,
                                                   const std::vector<int64_t>& shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat(path(), ": tensor \"", name, "\" is missing"));
  }
  const Entry& entry = found->second;
  if (entry.dtype != "U8" || entry.shape != shape) {
    return TensorPlace{path(), name}.Error(entry.dtype, " ", ShapeText(entry.shape), ", expected U8 ",
                                           ShapeText(shape));
  }
  return file_.bytes().data() + entry.begin;
}

absl::StatusOr<std::vector<int64_t>> SafetensorsFile::Integers(absl::string_view name, int64_t count) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat(path(), ": tensor \"", name, "\" is missing"));
  }
  const Entry& entry = found->second;
  if (entry.dtype != "I64" || entry.shape != std::vector<int64_t>{count}) {
    return TensorPlace{path(), name}.Error(entry.dtype, " ", ShapeText(entry.shape), ", expected I64 ",
                                           ShapeText({count}));
  }
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::memcpy(values.data(), file_.bytes().data() + entry.begin, values.size() * sizeof(int64_t));
  return values;
}

}  // namespace tandem
