#include "common/config/yaml_proto.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/config/yaml_document.h"
#include "google/protobuf/descriptor.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool IsBoolText(absl::string_view text) {
  return text == "true" || text == "True" || text == "TRUE" || text == "false" || text == "False" ||
         text == "FALSE";
}

template <class Integer>
bool ParseInteger(absl::string_view text, Integer* value) {
  if (absl::StartsWith(text, "0x")) {
    uint64_t bits = 0;
    if (!absl::SimpleHexAtoi(text, &bits) ||
        bits > static_cast<uint64_t>(std::numeric_limits<Integer>::max())) {
      return false;
    }
    *value = static_cast<Integer>(bits);
    return true;
  }
  return absl::SimpleAtoi(text, value);
}

// Whether YAML reads the plain text as a number, in range or not.
bool IsNumberText(absl::string_view text) {
  double number = 0.0;
  uint64_t bits = 0;
  if (text == ".inf" || text == "-.inf" || text == ".nan") return true;
  if (absl::StartsWith(text, "0x")) return absl::SimpleHexAtoi(text, &bits);
  const bool starts_like_one = !text.empty() && (absl::ascii_isdigit(static_cast<unsigned char>(text[0])) ||
                                                 text[0] == '-' || text[0] == '+' || text[0] == '.');
  const bool has_digit = text.find_first_of("0123456789") != absl::string_view::npos;
  return starts_like_one && has_digit && absl::SimpleAtod(text, &number);
}

bool IsWholeNumberText(absl::string_view text) {
  return IsNumberText(text) &&
         (absl::StartsWith(text, "0x") || text.find_first_of(".eE") == absl::string_view::npos);
}

// What stands at a node, for messages. Long texts are cut, since they may be a secret pasted at the wrong
// place.
std::string Found(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  if (!node.IsScalar()) return "nothing";
  constexpr size_t kShown = 40;
  const absl::string_view text = node.Scalar();
  return absl::StrCat("\"", text.substr(0, kShown), text.size() > kShown ? "...\"" : "\"");
}

// The enum's values without the prefix that the style guide gives them, in lower case.
std::string ShortEnumName(const EnumValueDescriptor* value) {
  std::string prefix;
  const std::string type(value->type()->name());
  for (size_t i = 0; i < type.size(); ++i) {
    if (i > 0 && absl::ascii_isupper(static_cast<unsigned char>(type[i]))) prefix += '_';
    prefix += absl::ascii_tolower(static_cast<unsigned char>(type[i]));
  }
  prefix += '_';
  const std::string name = absl::AsciiStrToLower(std::string(value->name()));
  return absl::StartsWith(name, prefix) ? name.substr(prefix.size()) : name;
}

class Converter {
 public:
  explicit Converter(absl::string_view path) : path_(path) {}

  absl::Status ConvertMessage(const YAML::Node& node, const std::string& where, int depth, Message* out) {
    TANDEM_RETURN_IF_ERROR(Count(node, where, depth));
    if (node.IsNull()) return absl::OkStatus();
    if (!node.IsMap()) return Error(node, where, absl::StrCat(Found(node), ", expected a mapping"));
    absl::flat_hash_set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar())
        return Error(entry.first, where, absl::StrCat(Found(entry.first), " as a key"));
      const std::string& key = entry.first.Scalar();
      const std::string inner =
          where.empty() ? key.substr(0, 64) : absl::StrCat(where, ".", key.substr(0, 64));
      const FieldDescriptor* field = out->GetDescriptor()->FindFieldByName(key);
      if (field == nullptr) {
        return Error(entry.first, inner,
                     absl::StrCat("unknown key", DidYouMean(key, FieldNames(out->GetDescriptor()))));
      }
      if (!seen.insert(key).second) return Error(entry.first, inner, "duplicate key");
      const auto* oneof = field->real_containing_oneof();
      if (oneof != nullptr && out->GetReflection()->HasOneof(*out, oneof)) {
        const FieldDescriptor* other = out->GetReflection()->GetOneofFieldDescriptor(*out, oneof);
        return Error(entry.first, inner,
                     absl::StrCat("given together with ", std::string(other->name()),
                                  ", expected only one of the two"));
      }
      TANDEM_RETURN_IF_ERROR(ConvertField(entry.second, inner, depth + 1, field, out));
    }
    return absl::OkStatus();
  }

 private:
  template <class T>
  using Setter = void (Reflection::*)(Message*, const FieldDescriptor*, T) const;

  absl::Status Error(const YAML::Node& node, absl::string_view where, absl::string_view what) const {
    return YamlError(path_, node, where.empty() ? std::string(what) : absl::StrCat(where, ": ", what));
  }

  // Every value that is converted, counted each time an alias leads to it.
  absl::Status Count(const YAML::Node& node, absl::string_view where, int depth) {
    if (depth > kMaxYamlDepth)
      return Error(node, where, absl::StrCat("nested deeper than ", kMaxYamlDepth, " levels"));
    if (++values_ > kMaxYamlValues)
      return Error(node, where, absl::StrCat("more than ", kMaxYamlValues, " values"));
    return absl::OkStatus();
  }

  static std::vector<std::string> FieldNames(const Descriptor* descriptor) {
    std::vector<std::string> names;
    for (int i = 0; i < descriptor->field_count(); ++i) names.emplace_back(descriptor->field(i)->name());
    return names;
  }

  absl::Status ConvertField(const YAML::Node& node, const std::string& where, int depth,
                            const FieldDescriptor* field, Message* out) {
    if (field->is_map()) return ConvertMap(node, where, depth, field, out);
    if (field->is_repeated()) return ConvertList(node, where, depth, field, out);
    return ConvertValue(node, where, depth, field, out);
  }

  absl::Status ConvertList(const YAML::Node& node, const std::string& where, int depth,
                           const FieldDescriptor* field, Message* out) {
    TANDEM_RETURN_IF_ERROR(Count(node, where, depth));
    if (node.IsNull()) return absl::OkStatus();
    if (!node.IsSequence()) return Error(node, where, absl::StrCat(Found(node), ", expected a list"));
    int index = 0;
    for (const auto& element : node) {
      TANDEM_RETURN_IF_ERROR(
          ConvertValue(element, absl::StrCat(where, "[", index++, "]"), depth + 1, field, out));
    }
    return absl::OkStatus();
  }

  absl::Status ConvertMap(const YAML::Node& node, const std::string& where, int depth,
                          const FieldDescriptor* field, Message* out) {
    TANDEM_RETURN_IF_ERROR(Count(node, where, depth));
    if (node.IsNull()) return absl::OkStatus();
    if (!node.IsMap()) return Error(node, where, absl::StrCat(Found(node), ", expected a mapping"));
    // Keys as they are encoded: 1 and 0x1 are one key.
    absl::flat_hash_set<std::string> seen;
    for (const auto& item : node) {
      Message* entry = out->GetReflection()->AddMessage(out, field);
      const std::string inner =
          absl::StrCat(where, "[", item.first.IsScalar() ? item.first.Scalar().substr(0, 64) : "?", "]");
      TANDEM_RETURN_IF_ERROR(
          ConvertValue(item.first, inner, depth + 1, field->message_type()->map_key(), entry));
      if (!seen.insert(entry->SerializeAsString()).second) return Error(item.first, inner, "duplicate key");
      TANDEM_RETURN_IF_ERROR(
          ConvertValue(item.second, inner, depth + 1, field->message_type()->map_value(), entry));
    }
    return absl::OkStatus();
  }

  // One value: of a singular field, or an element to be appended to a repeated one.
  absl::Status ConvertValue(const YAML::Node& node, const std::string& where, int depth,
                            const FieldDescriptor* field, Message* out) {
    const Reflection* reflection = out->GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message* inner =
          field->is_repeated() ? reflection->AddMessage(out, field) : reflection->MutableMessage(out, field);
      return ConvertMessage(node, where, depth, inner);
    }
    TANDEM_RETURN_IF_ERROR(Count(node, where, depth));
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return ConvertInteger<int32_t>(node, where, field, out, &Reflection::SetInt32, &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return ConvertInteger<int64_t>(node, where, field, out, &Reflection::SetInt64, &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return ConvertInteger<uint32_t>(node, where, field, out, &Reflection::SetUInt32,
                                        &Reflection::AddUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return ConvertInteger<uint64_t>(node, where, field, out, &Reflection::SetUInt64,
                                        &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return ConvertFloat<double>(node, where, field, out, &Reflection::SetDouble, &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return ConvertFloat<float>(node, where, field, out, &Reflection::SetFloat, &Reflection::AddFloat);
      case FieldDescriptor::CPPTYPE_BOOL: {
        if (!node.IsScalar() || !IsPlain(node) || !IsBoolText(node.Scalar())) {
          return Error(node, where, absl::StrCat(Found(node), ", expected true or false"));
        }
        const bool value = absl::ascii_tolower(static_cast<unsigned char>(node.Scalar()[0])) == 't';
        return Store<bool>(out, field, value, &Reflection::SetBool, &Reflection::AddBool);
      }
      case FieldDescriptor::CPPTYPE_ENUM:
        return ConvertEnum(node, where, field, out);
      case FieldDescriptor::CPPTYPE_STRING:
        return ConvertString(node, where, field, out);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    return absl::InternalError(absl::StrCat(where, ": a field of an unknown kind"));
  }

  template <class T>
  absl::Status Store(Message* out, const FieldDescriptor* field, T value, Setter<T> set, Setter<T> add) {
    (out->GetReflection()->*(field->is_repeated() ? add : set))(out, field, value);
    return absl::OkStatus();
  }

  template <class T>
  absl::Status ConvertInteger(const YAML::Node& node, const std::string& where, const FieldDescriptor* field,
                              Message* out, Setter<T> set, Setter<T> add) {
    T value = 0;
    if (node.IsScalar() && IsPlain(node) && IsWholeNumberText(node.Scalar()) &&
        ParseInteger(node.Scalar(), &value)) {
      return Store<T>(out, field, value, set, add);
    }
    return Error(node, where,
                 absl::StrCat(Found(node), ", expected a whole number from ", std::numeric_limits<T>::min(),
                              " to ", std::numeric_limits<T>::max()));
  }

  template <class T>
  absl::Status ConvertFloat(const YAML::Node& node, const std::string& where, const FieldDescriptor* field,
                            Message* out, Setter<T> set, Setter<T> add) {
    double value = 0.0;
    if (node.IsScalar() && IsPlain(node) && IsNumberText(node.Scalar()) &&
        absl::SimpleAtod(node.Scalar(), &value) &&
        std::abs(value) <= static_cast<double>(std::numeric_limits<T>::max())) {
      return Store<T>(out, field, static_cast<T>(value), set, add);
    }
    return Error(node, where,
                 absl::StrCat(Found(node), ", expected a number of at most ",
                              static_cast<double>(std::numeric_limits<T>::max()), " in size"));
  }

  absl::Status ConvertEnum(const YAML::Node& node, const std::string& where, const FieldDescriptor* field,
                           Message* out) {
    const EnumDescriptor* type = field->enum_type();
    std::vector<std::string> expected;
    const std::string text = node.IsScalar() ? absl::AsciiStrToLower(node.Scalar()) : "";
    for (int i = 0; i < type->value_count(); ++i) {
      const EnumValueDescriptor* value = type->value(i);
      const std::string short_name = ShortEnumName(value);
      // "Unspecified" is said by leaving the key out.
      if (short_name == "unspecified") continue;
      if (text == short_name || text == absl::AsciiStrToLower(std::string(value->name()))) {
        return Store<const EnumValueDescriptor*>(out, field, value, &Reflection::SetEnum,
                                                 &Reflection::AddEnum);
      }
      expected.push_back(short_name);
    }
    return Error(node, where, absl::StrCat(Found(node), ", expected ", absl::StrJoin(expected, ", ")));
  }

  absl::Status ConvertString(const YAML::Node& node, const std::string& where, const FieldDescriptor* field,
                             Message* out) {
    if (field->type() == FieldDescriptor::TYPE_BYTES) {
      return Error(node, where, "bytes cannot be given in a configuration");
    }
    if (!node.IsScalar()) return Error(node, where, absl::StrCat(Found(node), ", expected text"));
    const std::string& text = node.Scalar();
    if (IsPlain(node) && (IsBoolText(text) || IsNumberText(text))) {
      return Error(node, where, absl::StrCat("not text but ", text.substr(0, 40), "; put it in quotes"));
    }
    const Reflection* reflection = out->GetReflection();
    if (field->is_repeated()) {
      reflection->AddString(out, field, text);
    } else {
      reflection->SetString(out, field, text);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  int values_ = 0;
};

}  // namespace

absl::Status ParseYaml(absl::string_view text, absl::string_view path, google::protobuf::Message* out) {
  out->Clear();
  TANDEM_ASSIGN_OR_RETURN(const YAML::Node document, LoadYaml(text, path));
  try {
    return Converter(path).ConvertMessage(document, "", 0, out);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

absl::Status ReadYamlFile(const std::string& path, google::protobuf::Message* out) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  return ParseYaml(text, path, out);
}

}  // namespace tandem
