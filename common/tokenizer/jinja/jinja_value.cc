#include "common/tokenizer/jinja/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/python_text.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

constexpr int kMaxDepth = 64;

int DepthOf(const JinjaValue& value) {
  if (const auto* list = value.As<std::shared_ptr<const JinjaList>>()) return (*list)->depth;
  if (const auto* dict = value.As<std::shared_ptr<const JinjaDict>>()) return (*dict)->depth;
  if (const auto* loop = value.As<std::shared_ptr<const JinjaLoop>>()) return (*loop)->state->list->depth;
  if (const auto* callable = value.As<std::shared_ptr<const JinjaCallable>>())
    return DepthOf((*callable)->self) + 1;
  return 0;
}

absl::Status TooDeep() {
  return absl::InvalidArgumentError("values nest too deeply");
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// The numeric value of a bool, an int or a float.
const double* AsNumber(const JinjaValue& value, double& storage) {
  if (const bool* b = value.As<bool>()) {
    storage = *b ? 1 : 0;
  } else if (const int64_t* i = value.As<int64_t>()) {
    storage = static_cast<double>(*i);
  } else if (const double* d = value.As<double>()) {
    storage = *d;
  } else {
    return nullptr;
  }
  return &storage;
}

std::string StringRepr(absl::string_view text) {
  const char quote = absl::StrContains(text, "'") && !absl::StrContains(text, "\"") ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    const absl::string_view character = text.substr(0, unit.length);
    text.remove_prefix(unit.length);
    const uint32_t c = unit.code_point;
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      absl::StrAppend(&out, "\\", character);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      absl::StrAppend(&out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (IsPythonPrintable(c)) {
      absl::StrAppend(&out, character);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", c);
    }
  }
  out += quote;
  return out;
}

}  // namespace

absl::Status JinjaBudget::Step() {
  if (--steps_left_ < 0) return absl::ResourceExhaustedError("the template takes too many steps");
  return absl::OkStatus();
}

absl::Status JinjaBudget::Bytes(size_t count) {
  if (count > static_cast<size_t>(std::max<int64_t>(bytes_left_, 0))) {
    bytes_left_ = 0;
    return absl::ResourceExhaustedError("the template handles too many bytes");
  }
  bytes_left_ -= static_cast<int64_t>(count);
  return absl::OkStatus();
}

absl::StatusOr<JinjaValue> JinjaValue::List(Items items, std::string kind) {
  int depth = 0;
  for (const JinjaValue& item : items) depth = std::max(depth, DepthOf(item));
  if (depth >= kMaxDepth) return TooDeep();
  return JinjaValue(
      Variant(std::make_shared<const JinjaList>(JinjaList{std::move(items), depth + 1, std::move(kind)})));
}

absl::StatusOr<JinjaValue> JinjaValue::Dict(Members members) {
  int depth = 0;
  for (const auto& [key, value] : members) depth = std::max(depth, DepthOf(value));
  if (depth >= kMaxDepth) return TooDeep();
  return JinjaValue(Variant(std::make_shared<const JinjaDict>(JinjaDict{std::move(members), depth + 1})));
}

const std::string* JinjaValue::AsString() const {
  if (const auto* text = As<JinjaString>()) return text->get();
  const auto* markup = As<JinjaMarkup>();
  return markup == nullptr ? nullptr : markup->text.get();
}

bool JinjaValue::IsTuple() const {
  return AsItems() != nullptr && (ListKind() == kTuple || ListKind() == kGroup);
}

bool JinjaValue::IsRange() const {
  return AsItems() != nullptr && absl::StartsWith(ListKind(), "range(");
}

const JinjaValue::Items* JinjaValue::AsItems() const {
  const auto* list = As<std::shared_ptr<const JinjaList>>();
  return list == nullptr ? nullptr : &(*list)->items;
}

const std::string& JinjaValue::ListKind() const {
  return (*As<std::shared_ptr<const JinjaList>>())->kind;
}

const JinjaDict* JinjaValue::AsDict() const {
  const auto* dict = As<std::shared_ptr<const JinjaDict>>();
  return dict == nullptr ? nullptr : dict->get();
}

absl::string_view JinjaValue::TypeName() const {
  static constexpr absl::string_view kNames[] = {"undefined", "none", "bool",     "int",
                                                 "float",     "str",  "list",     "dict",
                                                 "namespace", "loop", "callable", "Markup"};
  return kNames[value_.index()];
}

bool JinjaValue::IsTrue() const {
  if (IsUndefined() || IsNone()) return false;
  if (const bool* b = As<bool>()) return *b;
  if (const int64_t* i = As<int64_t>()) return *i != 0;
  if (const double* d = As<double>()) return *d != 0;
  if (const std::string* text = AsString()) return !text->empty();
  if (const Items* items = AsItems()) return !items->empty();
  if (const JinjaDict* dict = AsDict()) return !dict->members.empty();
  return true;
}

const JinjaValue* JinjaDict::Find(const JinjaValue& key) const {
  for (const auto& [name, value] : members) {
    if (SameJinjaKey(name, key)) return &value;
  }
  return nullptr;
}

absl::Status CheckJinjaKey(const JinjaValue& key) {
  double number = 0;
  if (key.AsString() != nullptr || key.IsNone() || key.IsRange() || AsNumber(key, number) != nullptr)
    return absl::OkStatus();
  if (key.IsTuple()) {
    for (const JinjaValue& item : *key.AsItems()) TANDEM_RETURN_IF_ERROR(CheckJinjaKey(item));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a value of type ", key.TypeName(), " cannot be a key"));
}

bool SameJinjaKey(const JinjaValue& a, const JinjaValue& b) {
  if (a.AsString() != nullptr || b.AsString() != nullptr) {
    return a.AsString() != nullptr && b.AsString() != nullptr && *a.AsString() == *b.AsString();
  }
  if (a.As<int64_t>() != nullptr && b.As<int64_t>() != nullptr) return *a.As<int64_t>() == *b.As<int64_t>();
  double a_number = 0;
  double b_number = 0;
  if (AsNumber(a, a_number) != nullptr && AsNumber(b, b_number) != nullptr) return a_number == b_number;
  if ((a.IsTuple() && b.IsTuple()) || (a.IsRange() && b.IsRange())) {
    return std::equal(a.AsItems()->begin(), a.AsItems()->end(), b.AsItems()->begin(), b.AsItems()->end(),
                      SameJinjaKey);
  }
  return a.IsNone() && b.IsNone();
}

std::string JinjaFloatText(double value) {
  return FloatText(value);
}

std::string JinjaEscaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}});
}

absl::StatusOr<std::string> JinjaToText(const JinjaValue& value, JinjaBudget& budget) {
  if (const std::string* text = value.AsString()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size()));
    return *text;
  }
  if (value.IsUndefined()) return std::string();
  return JinjaToRepr(value, budget);
}

absl::StatusOr<std::string> JinjaToRepr(const JinjaValue& value, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Step());
  if (value.IsUndefined()) return std::string("Undefined");
  if (value.IsNone()) return std::string("None");
  if (const bool* b = value.As<bool>()) return std::string(*b ? "True" : "False");
  if (const int64_t* i = value.As<int64_t>()) return absl::StrCat(*i);
  if (const double* d = value.As<double>()) return FloatText(*d);
  std::string out;
  if (const std::string* text = value.AsString()) {
    out = value.IsMarkup() ? absl::StrCat("Markup(", StringRepr(*text), ")") : StringRepr(*text);
  } else if (const JinjaValue::Items* items = value.AsItems()) {
    for (const JinjaValue& item : *items) {
      TANDEM_ASSIGN_OR_RETURN(const std::string part, JinjaToRepr(item, budget));
      absl::StrAppend(&out, out.empty() ? "" : ", ", part);
    }
    const std::string& kind = value.ListKind();
    if (value.IsTuple()) {
      out = absl::StrCat("(", out, items->size() == 1 ? ",)" : ")");
    } else if (value.IsRange()) {
      out = kind;
    } else if (!kind.empty()) {
      out = absl::StrCat(kind, "([", out, "])");
    } else {
      out = absl::StrCat("[", out, "]");
    }
  } else if (const JinjaDict* dict = value.AsDict()) {
    for (const auto& [key, member] : dict->members) {
      TANDEM_ASSIGN_OR_RETURN(const std::string part, JinjaToRepr(member, budget));
      TANDEM_ASSIGN_OR_RETURN(const std::string name, JinjaToRepr(key, budget));
      absl::StrAppend(&out, out.empty() ? "" : ", ", name, ": ", part);
    }
    out = absl::StrCat("{", out, "}");
  } else {
    out = absl::StrCat("<", value.TypeName(), ">");
  }
  TANDEM_RETURN_IF_ERROR(budget.Bytes(out.size()));
  return out;
}

absl::StatusOr<bool> JinjaEqual(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Step());
  double a_number = 0;
  double b_number = 0;
  if (a.As<int64_t>() != nullptr && b.As<int64_t>() != nullptr) return *a.As<int64_t>() == *b.As<int64_t>();
  if (AsNumber(a, a_number) != nullptr && AsNumber(b, b_number) != nullptr) return a_number == b_number;
  if (a.AsString() != nullptr && b.AsString() != nullptr) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(std::min(a.AsString()->size(), b.AsString()->size())));
    return *a.AsString() == *b.AsString();
  }
  if (a.IsUndefined() || b.IsUndefined()) return a.IsUndefined() && b.IsUndefined();
  if (a.IsNone() || b.IsNone()) return a.IsNone() && b.IsNone();
  if (a.AsItems() != nullptr && b.AsItems() != nullptr) {
    // Lists and tuples are never equal.
    if (a.ListKind().empty() != b.ListKind().empty() || a.IsTuple() != b.IsTuple()) return false;
    if (a.AsItems()->size() != b.AsItems()->size()) return false;
    for (size_t i = 0; i < a.AsItems()->size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual((*a.AsItems())[i], (*b.AsItems())[i], budget));
      if (!same) return false;
    }
    return true;
  }
  if (a.AsDict() != nullptr && b.AsDict() != nullptr) {
    if (a.AsDict()->members.size() != b.AsDict()->members.size()) return false;
    for (const auto& [key, value] : a.AsDict()->members) {
      TANDEM_RETURN_IF_ERROR(budget.Bytes(b.AsDict()->members.size()));
      const JinjaValue* other = b.AsDict()->Find(key);
      if (other == nullptr) return false;
      TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual(value, *other, budget));
      if (!same) return false;
    }
    return true;
  }
  return false;
}

absl::StatusOr<bool> JinjaLess(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Step());
  double a_number = 0;
  double b_number = 0;
  if (a.As<int64_t>() != nullptr && b.As<int64_t>() != nullptr) return *a.As<int64_t>() < *b.As<int64_t>();
  if (AsNumber(a, a_number) != nullptr && AsNumber(b, b_number) != nullptr) return a_number < b_number;
  if (a.AsString() != nullptr && b.AsString() != nullptr) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(std::min(a.AsString()->size(), b.AsString()->size())));
    return *a.AsString() < *b.AsString();  // UTF-8 sorts like code points
  }
  if (a.AsItems() != nullptr && b.AsItems() != nullptr && a.IsTuple() == b.IsTuple() &&
      a.ListKind().empty() == b.ListKind().empty()) {
    const JinjaValue::Items& left = *a.AsItems();
    const JinjaValue::Items& right = *b.AsItems();
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual(left[i], right[i], budget));
      if (!same) return JinjaLess(left[i], right[i], budget);
    }
    return left.size() < right.size();
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot order ", a.TypeName(), " and ", b.TypeName()));
}

absl::StatusOr<bool> JinjaContains(const JinjaValue& haystack, const JinjaValue& needle,
                                   JinjaBudget& budget) {
  if (const std::string* text = haystack.AsString()) {
    if (needle.AsString() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("cannot look for ", needle.TypeName(), " in a string"));
    }
    TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size()));
    return absl::StrContains(*text, *needle.AsString());
  }
  if (const JinjaDict* dict = haystack.AsDict()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(dict->members.size()));
    if (!needle.IsUndefined()) TANDEM_RETURN_IF_ERROR(CheckJinjaKey(needle));
    return dict->Find(needle) != nullptr;
  }
  if (haystack.IsUndefined()) return false;
  if (haystack.AsItems() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("cannot look into ", haystack.TypeName()));
  }
  for (const JinjaValue& item : *haystack.AsItems()) {
    TANDEM_ASSIGN_OR_RETURN(const bool same, JinjaEqual(item, needle, budget));
    if (same) return true;
  }
  return false;
}

absl::StatusOr<JinjaValue::Items> JinjaIterate(const JinjaValue& value, JinjaBudget& budget) {
  JinjaValue::Items items;
  if (const JinjaValue::Items* list = value.AsItems()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(list->size() * sizeof(JinjaValue)));
    return *list;
  }
  if (const JinjaDict* dict = value.AsDict()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(dict->members.size() * sizeof(JinjaValue)));
    for (const auto& member : dict->members) items.push_back(member.first);
    return items;
  }
  if (const std::string* text = value.AsString()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size() * sizeof(JinjaValue)));
    for (absl::string_view rest = *text; !rest.empty();) {
      const size_t length = ReadUtf8(rest).length;
      items.push_back(JinjaValue::String(std::string(rest.substr(0, length))));
      rest.remove_prefix(length);
    }
    return items;
  }
  if (value.IsUndefined()) return items;
  return absl::InvalidArgumentError(absl::StrCat("cannot iterate over ", value.TypeName()));
}

size_t CountCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace tandem
