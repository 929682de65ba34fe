#include "common/gguf/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxKeys = 65536;
constexpr uint64_t kMaxTensors = 65536;
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint64_t kMaxStringBytes = uint64_t{16} << 20;
// Of all arrays: each element takes more memory here than in the file.
constexpr uint64_t kMaxElements = uint64_t{8} << 20;
constexpr uint32_t kMaxRank = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;

constexpr GgufTypeInfo kTypes[] = {
    {GgufType::kF32, "F32", 1, 4},           {GgufType::kF16, "F16", 1, 2},
    {GgufType::kBF16, "BF16", 1, 2},         {GgufType::kQ8_0, "Q8_0", 32, 34},
    {GgufType::kQ4_0, "Q4_0", 32, 18},       {GgufType::kQ4_1, "Q4_1", 32, 20},
    {GgufType::kQ5_0, "Q5_0", 32, 22},       {GgufType::kQ5_1, "Q5_1", 32, 24},
    {GgufType::kQ2_K, "Q2_K", 256, 84},      {GgufType::kQ3_K, "Q3_K", 256, 110},
    {GgufType::kQ4_K, "Q4_K", 256, 144},     {GgufType::kQ5_K, "Q5_K", 256, 176},
    {GgufType::kQ6_K, "Q6_K", 256, 210},     {GgufType::kIq1S, "IQ1_S", 256, 50},
    {GgufType::kIq1M, "IQ1_M", 256, 56},     {GgufType::kIq2Xxs, "IQ2_XXS", 256, 66},
    {GgufType::kIq2Xs, "IQ2_XS", 256, 74},   {GgufType::kIq2S, "IQ2_S", 256, 82},
    {GgufType::kIq3Xxs, "IQ3_XXS", 256, 98}, {GgufType::kIq3S, "IQ3_S", 256, 110},
    {GgufType::kIq4Nl, "IQ4_NL", 32, 18},    {GgufType::kIq4Xs, "IQ4_XS", 256, 136},
    {GgufType::kTq1_0, "TQ1_0", 256, 54},    {GgufType::kTq2_0, "TQ2_0", 256, 66},
    {GgufType::kMxfp4, "MXFP4", 32, 17},
};

std::string SupportedTypes() {
  const auto append_name = [](std::string* out, const GgufTypeInfo& info) {
    absl::StrAppend(out, info.name);
  };
  return absl::StrJoin(kTypes, ", ", append_name);
}

// The format's numbers of the types of values.
enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, 100)), "\"");
}

constexpr char kSplitCount[] = "split.count";
constexpr char kSplitNumber[] = "split.no";  // From 0 on.
constexpr char kSplitTensors[] = "split.tensors.count";
constexpr uint64_t kMaxParts = 1024;

// "-00001-of-00003.gguf"
std::string PartEnding(uint64_t index, uint64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", index + 1, count);
}

absl::StatusOr<uint64_t> SplitNumber(const GgufFile& file, const char* key, uint64_t if_absent) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return if_absent;
  if (found->is_number_integer() && *found >= 0 && *found <= INT32_MAX) return found->get<uint64_t>();
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": key ", key, ": expected a number of files or tensors"));
}

}  // namespace

const GgufTypeInfo& InfoOf(GgufType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes),
                       [type](const GgufTypeInfo& info) { return info.type == type; });
}

absl::Span<const GgufTypeInfo> GgufTypes() {
  return kTypes;
}

bool GgufFile::IsPath(absl::string_view path) {
  return absl::EndsWith(path, ".gguf");
}

// Reads a mapped file from its beginning on.
class GgufFile::Reader {
 public:
  explicit Reader(GgufFile& file) : file_(file), bytes_(file.file_.bytes()) {}

  absl::Status ReadAll() {
    if (!absl::StartsWith(bytes_, "GGUF")) return Error("expected the four bytes GGUF");
    at_ = 4;
    TANDEM_ASSIGN_OR_RETURN(const uint32_t version, Number<uint32_t>());
    if (const uint32_t swapped = __builtin_bswap32(version); swapped == 2 || swapped == 3) {
      return absl::UnimplementedError(absl::StrCat(file_.path(), ": byte 4: version ", swapped,
                                                   ", big endian; supported: 2 and 3, little endian"));
    }
    if (version != 2 && version != 3) {
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": byte 4: version ", version, ", supported: 2 and 3, little endian"));
    }
    TANDEM_ASSIGN_OR_RETURN(const uint64_t num_tensors, Count(kMaxTensors, "tensors"));
    TANDEM_ASSIGN_OR_RETURN(const uint64_t num_keys, Count(kMaxKeys, "keys"));
    for (uint64_t i = 0; i < num_keys; ++i) TANDEM_RETURN_IF_ERROR(ReadKey());
    std::vector<Place> places;
    for (uint64_t i = 0; i < num_tensors; ++i) {
      TANDEM_ASSIGN_OR_RETURN(Place place, ReadTensor());
      places.push_back(std::move(place));
    }
    return PlaceTensors(std::move(places));
  }

 private:
  struct Place {
    std::string name;
    uint64_t offset;  // in the data
    uint64_t num_bytes;
  };

  absl::Status Error(absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": byte ", at_, ": ", message));
  }

  template <typename T>
  absl::StatusOr<T> Number() {
    if (bytes_.size() - at_ < sizeof(T)) {
      return Error(absl::StrCat("the file ends, expected ", sizeof(T), " more bytes"));
    }
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  absl::StatusOr<uint64_t> Count(uint64_t most, absl::string_view what) {
    TANDEM_ASSIGN_OR_RETURN(const uint64_t count, Number<uint64_t>());
    if (count > most) return Error(absl::StrCat(count, " ", what, ", expected at most ", most));
    return count;
  }

  absl::StatusOr<std::string> String(uint64_t most) {
    TANDEM_ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>());
    const uint64_t left = std::min<uint64_t>(most, bytes_.size() - at_);
    if (length > left) return Error(absl::StrCat("a string of ", length, " bytes, expected at most ", left));
    std::string text(bytes_.substr(at_, length));
    at_ += length;
    return text;
  }

  absl::Status ReadKey() {
    TANDEM_ASSIGN_OR_RETURN(std::string key, String(kMaxNameBytes));
    TANDEM_ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>());
    TANDEM_ASSIGN_OR_RETURN(Json value, type == kArray ? ReadArray() : ReadValue(type));
    if (file_.metadata_.contains(key)) return Error(absl::StrCat("the key ", Quoted(key), " occurs twice"));
    file_.metadata_[std::move(key)] = std::move(value);
    return absl::OkStatus();
  }

  template <typename T>
  absl::StatusOr<Json> NumberValue() {
    TANDEM_ASSIGN_OR_RETURN(const T number, Number<T>());
    return Json(number);
  }

  absl::StatusOr<Json> ReadValue(uint32_t type) {
    switch (type) {
      case kUint8:
        return NumberValue<uint8_t>();
      case kInt8:
        return NumberValue<int8_t>();
      case kUint16:
        return NumberValue<uint16_t>();
      case kInt16:
        return NumberValue<int16_t>();
      case kUint32:
        return NumberValue<uint32_t>();
      case kInt32:
        return NumberValue<int32_t>();
      case kFloat32:
        return NumberValue<float>();
      case kUint64:
        return NumberValue<uint64_t>();
      case kInt64:
        return NumberValue<int64_t>();
      case kFloat64:
        return NumberValue<double>();
      case kBool: {
        TANDEM_ASSIGN_OR_RETURN(const uint8_t value, Number<uint8_t>());
        if (value > 1) return Error(absl::StrCat("a boolean of ", value, ", expected 0 or 1"));
        return Json(value == 1);
      }
      case kString: {
        TANDEM_ASSIGN_OR_RETURN(std::string text, String(kMaxStringBytes));
        return Json(std::move(text));
      }
      default:
        return Error(
            absl::StrCat("a value of type ", type, ", expected one of the format's, arrays not nested"));
    }
  }

  absl::StatusOr<Json> ReadArray() {
    TANDEM_ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>());
    // No element is shorter than a byte.
    const uint64_t most = std::min<uint64_t>(kMaxElements - num_elements_, bytes_.size() - at_);
    TANDEM_ASSIGN_OR_RETURN(const uint64_t count, Count(most, "elements"));
    num_elements_ += count;
    Json array = Json::array();
    for (uint64_t i = 0; i < count; ++i) {
      TANDEM_ASSIGN_OR_RETURN(Json value, ReadValue(type));
      array.push_back(std::move(value));
    }
    return array;
  }

  absl::StatusOr<Place> ReadTensor() {
    Place place{};
    TANDEM_ASSIGN_OR_RETURN(place.name, String(kMaxNameBytes));
    const std::string where = absl::StrCat("tensor ", Quoted(place.name), ": ");
    TANDEM_ASSIGN_OR_RETURN(const uint32_t rank, Number<uint32_t>());
    if (rank > kMaxRank) return Error(absl::StrCat(where, rank, " dimensions, expected at most ", kMaxRank));
    GgufTensor tensor;
    int64_t num_elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      TANDEM_ASSIGN_OR_RETURN(const uint64_t size, Number<uint64_t>());
      const std::optional<int64_t> product = size == 0 || size > INT64_MAX
                                                 ? std::nullopt
                                                 : CheckedMultiply(num_elements, static_cast<int64_t>(size));
      if (!product.has_value()) return Error(absl::StrCat(where, "expected 1 to 2^63 - 1 elements"));
      num_elements = *product;
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    TANDEM_ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>());
    const auto* info = std::find_if(std::begin(kTypes), std::end(kTypes), [type](const GgufTypeInfo& known) {
      return static_cast<uint32_t>(known.type) == type;
    });
    if (info == std::end(kTypes)) {
      return absl::UnimplementedError(absl::StrCat(file_.path(), ": ", where, "type ", type,
                                                   " of the format, supported: ", SupportedTypes()));
    }
    tensor.type = info->type;
    if ((tensor.shape.empty() ? 1 : tensor.shape.back()) % info->block_size != 0) {
      return Error(absl::StrCat(where, "rows of ", tensor.shape.empty() ? 1 : tensor.shape.back(),
                                " numbers, expected a multiple of ", info->block_size, " for ", info->name));
    }
    const std::optional<int64_t> num_bytes =
        CheckedMultiply(num_elements / info->block_size, info->block_bytes);
    if (!num_bytes.has_value()) return Error(absl::StrCat(where, "expected fewer than 2^63 bytes"));
    place.num_bytes = static_cast<uint64_t>(*num_bytes);
    TANDEM_ASSIGN_OR_RETURN(place.offset, Number<uint64_t>());
    if (!file_.tensors_.emplace(place.name, std::move(tensor)).second) {
      return Error(absl::StrCat(where, "occurs twice"));
    }
    file_.names_.push_back(place.name);
    return place;
  }

  absl::Status PlaceTensors(std::vector<Place> places) {
    uint64_t alignment = 32;
    if (const auto found = file_.metadata_.find("general.alignment"); found != file_.metadata_.end()) {
      if (!found->is_number_unsigned() || found->get<uint64_t>() == 0 ||
          found->get<uint64_t>() > kMaxAlignment) {
        return Error(absl::StrCat("general.alignment: expected a number from 1 to ", kMaxAlignment));
      }
      alignment = found->get<uint64_t>();
    }
    const uint64_t begin = (at_ + alignment - 1) / alignment * alignment;
    const uint64_t data_bytes = bytes_.size() - std::min<uint64_t>(begin, bytes_.size());
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::tie(a.offset, a.name) < std::tie(b.offset, b.name);
    });
    uint64_t end = 0;
    for (const Place& place : places) {
      const std::string where = absl::StrCat("tensor ", Quoted(place.name), ": offset ", place.offset);
      if (place.offset % alignment != 0)
        return Error(absl::StrCat(where, ", expected a multiple of ", alignment));
      if (place.offset < end) return Error(absl::StrCat(where, ", expected ", end, " or more (overlap)"));
      if (place.offset > data_bytes || place.num_bytes > data_bytes - place.offset) {
        return Error(
            absl::StrCat(where, " and ", place.num_bytes, " bytes, expected within the data's ", data_bytes));
      }
      end = place.offset + place.num_bytes;
      file_.tensors_.at(place.name).bytes = bytes_.substr(begin + place.offset, place.num_bytes);
    }
    std::sort(file_.names_.begin(), file_.names_.end());
    return absl::OkStatus();
  }

  GgufFile& file_;
  absl::string_view bytes_;
  uint64_t at_ = 0;
  uint64_t num_elements_ = 0;  // of arrays so far
};

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  GgufFile file(std::move(mapped));
  TANDEM_RETURN_IF_ERROR(Reader(file).ReadAll());
  TANDEM_RETURN_IF_ERROR(file.AddParts());
  return file;
}

absl::Status GgufFile::AddParts() {
  TANDEM_ASSIGN_OR_RETURN(const uint64_t count, SplitNumber(*this, kSplitCount, 1));
  if (count == 1 || count == 0) return absl::OkStatus();
  const auto error = [](const std::string& path, auto... message) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", message...));
  };
  if (count > kMaxParts) {
    return error(path(), "key ", kSplitCount, ": ", count, ", expected at most ", kMaxParts);
  }
  TANDEM_ASSIGN_OR_RETURN(const uint64_t first, SplitNumber(*this, kSplitNumber, 0));
  const std::string ending = PartEnding(0, count);
  if (first != 0 || !absl::EndsWith(path(), ending)) {
    return error(path(), "one of ", count, " files, number ", first + 1,
                 ", expected the first, whose name ends in ", ending);
  }
  const absl::string_view stem = absl::StripSuffix(path(), ending);
  for (uint64_t i = 1; i < count; ++i) {
    TANDEM_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(absl::StrCat(stem, PartEnding(i, count))));
    GgufFile part(std::move(mapped));
    TANDEM_RETURN_IF_ERROR(Reader(part).ReadAll());
    TANDEM_ASSIGN_OR_RETURN(const uint64_t part_count, SplitNumber(part, kSplitCount, 0));
    TANDEM_ASSIGN_OR_RETURN(const uint64_t number, SplitNumber(part, kSplitNumber, 0));
    if (part_count != count || number != i) {
      return error(part.path(), "keys ", kSplitNumber, " and ", kSplitCount, ": ", number, " and ",
                   part_count, ", expected ", i, " and ", count);
    }
    if (names_.size() + part.names_.size() > kMaxTensors) {
      return error(path(), "expected at most ", kMaxTensors, " tensors in all files");
    }
    for (const std::string& name : part.names_) {
      if (!tensors_.emplace(name, std::move(part.tensors_.at(name))).second) {
        return error(part.path(), "tensor ", Quoted(name), " is in another file too");
      }
      names_.push_back(name);
    }
    parts_.push_back(std::move(part.file_));
  }
  std::sort(names_.begin(), names_.end());
  TANDEM_ASSIGN_OR_RETURN(const uint64_t tensors, SplitNumber(*this, kSplitTensors, names_.size()));
  if (tensors == names_.size()) return absl::OkStatus();
  return error(path(), "key ", kSplitTensors, ": ", tensors, ", but the files have ", names_.size());
}

const GgufTensor* GgufFile::Find(absl::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace tandem
