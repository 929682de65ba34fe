#include "common/rpc/text_fields.h"

#include <cstdint>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// As protobuf's own parser has it.
constexpr int kMostNesting = 100;

bool IsDelimited(const FieldDescriptor& field) {
  return field.type() == FieldDescriptor::TYPE_STRING || field.type() == FieldDescriptor::TYPE_MESSAGE;
}

// Reads to the end of the message. False in `valid` when what is there is no message.
std::optional<std::string> FindField(const Descriptor& type, CodedInputStream& in, int nesting, bool& valid) {
  std::map<int, int> elements;  // Of repeated fields, seen so far, by number.
  while (const uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* const field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr || !IsDelimited(*field) ||
        WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      valid = valid && WireFormatLite::SkipField(&in, tag);
      if (!valid) return std::nullopt;
      continue;
    }
    uint32_t size = 0;
    valid = valid && in.ReadVarint32(&size) && size <= std::numeric_limits<int>::max() / 2 && nesting > 0;
    if (!valid) return std::nullopt;
    std::string name(field->name());
    if (field->is_repeated()) absl::StrAppend(&name, "[", elements[field->number()]++, "]");
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      std::string value;
      valid = in.ReadString(&value, static_cast<int>(size));
      if (!valid) return std::nullopt;
      if (CleanUtf8(value) != value) return name;
      continue;
    }
    const CodedInputStream::Limit outer = in.PushLimit(static_cast<int>(size));
    std::optional<std::string> inner = FindField(*field->message_type(), in, nesting - 1, valid);
    if (inner.has_value()) return absl::StrCat(name, ".", *inner);
    valid = valid && in.BytesUntilLimit() == 0;
    if (!valid) return std::nullopt;
    in.PopLimit(outer);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> FieldThatIsNotUtf8(const Descriptor& type, absl::string_view bytes) {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) return std::nullopt;
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  bool valid = true;
  return FindField(type, in, kMostNesting, valid);
}

}  // namespace tandem
