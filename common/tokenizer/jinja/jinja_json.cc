#include "common/tokenizer/jinja/jinja_json.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

void AppendEscaped(uint32_t code_point, std::string& out) {
  if (code_point < 0x10000) {
    absl::StrAppendFormat(&out, "\\u%04x", code_point);
    return;
  }
  const uint32_t rest = code_point - 0x10000;
  absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
}

void AppendJsonString(absl::string_view text, bool ensure_ascii, std::string& out) {
  static constexpr absl::string_view kEscaped = "\"\\\n\r\t\b\f";
  static constexpr absl::string_view kLetters = "\"\\nrtbf";
  out += '"';
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    const size_t letter = kEscaped.find(static_cast<char>(c));
    size_t length = 1;
    if (letter != absl::string_view::npos) {
      out += '\\';
      out += kLetters[letter];
    } else if (c < 0x20) {
      AppendEscaped(c, out);
    } else if (c < 0x7F || !ensure_ascii) {
      out += static_cast<char>(c);
    } else {
      const Utf8Unit unit = ReadUtf8(text);
      length = unit.length;
      AppendEscaped(unit.code_point, out);
    }
    text.remove_prefix(length);
  }
  out += '"';
}

// Writes a value as JSON, and charges the budget for it.
class JsonWriter {
 public:
  JsonWriter(const JinjaJsonStyle& style, JinjaBudget& budget) : style_(style), budget_(budget) {}

  absl::Status Write(const JinjaValue& value, size_t level) {
    TANDEM_RETURN_IF_ERROR(budget_.Step());
    const size_t before = out_.size();
    if (const std::string* text = value.AsString()) {
      AppendJsonString(*text, style_.ensure_ascii, out_);
      return budget_.Bytes(out_.size() - before);
    }
    if (value.IsNone()) {
      out_ += "null";
    } else if (const bool* b = value.As<bool>()) {
      out_ += *b ? "true" : "false";
    } else if (const int64_t* i = value.As<int64_t>()) {
      absl::StrAppend(&out_, *i);
    } else if (const double* d = value.As<double>()) {
      out_ += FloatText(*d);
    } else if (value.AsItems() != nullptr && (value.ListKind().empty() || value.IsTuple())) {
      return WriteList(*value.AsItems(), level);
    } else if (const JinjaDict* dict = value.AsDict()) {
      return WriteDict(*dict, level);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("a value of type ", value.TypeName(), " is not JSON"));
    }
    return absl::OkStatus();
  }

  std::string Finish() { return std::move(out_); }

 private:
  static std::string FloatText(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return JinjaFloatText(value);
  }

  absl::Status BeginLine(size_t level) {
    if (!style_.indent.has_value()) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(budget_.Bytes(1 + level * style_.indent->size()));
    out_ += '\n';
    for (size_t i = 0; i < level; ++i) out_ += *style_.indent;
    return absl::OkStatus();
  }
  absl::Status Separate(size_t index, size_t level) {
    if (index > 0) {
      TANDEM_RETURN_IF_ERROR(budget_.Bytes(style_.item_separator.size()));
      out_ += style_.item_separator;
    }
    return BeginLine(level);
  }

  absl::Status WriteList(const JinjaValue::Items& items, size_t level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(Separate(i, level + 1));
      TANDEM_RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    if (!items.empty()) TANDEM_RETURN_IF_ERROR(BeginLine(level));
    out_ += ']';
    return absl::OkStatus();
  }

  // Like json.dumps, writes keys that are not strings as strings.
  absl::Status WriteKey(const JinjaValue& key) {
    const double* number = key.As<double>();
    const bool* flag = key.As<bool>();
    const int64_t* integer = key.As<int64_t>();
    std::string text;
    if (key.AsString() != nullptr) {
      text = *key.AsString();
    } else if (flag != nullptr) {
      text = *flag ? "true" : "false";
    } else if (number != nullptr) {
      text = FloatText(*number);
    } else if (integer != nullptr) {
      text = absl::StrCat(*integer);
    } else if (key.IsNone()) {
      text = "null";
    } else {
      return absl::InvalidArgumentError(absl::StrCat("a key of type ", key.TypeName(), " is not JSON"));
    }
    const size_t before = out_.size();
    AppendJsonString(text, style_.ensure_ascii, out_);
    return budget_.Bytes(out_.size() - before);
  }

  absl::Status WriteDict(const JinjaDict& dict, size_t level) {
    std::vector<const std::pair<JinjaValue, JinjaValue>*> members;
    for (const auto& member : dict.members) members.push_back(&member);
    if (style_.sort_keys) {
      absl::Status failed;
      std::stable_sort(members.begin(), members.end(), [&](const auto* a, const auto* b) {
        if (!failed.ok()) return false;
        const absl::StatusOr<bool> less = JinjaLess(a->first, b->first, budget_);
        failed = less.status();
        return less.ok() && *less;
      });
      TANDEM_RETURN_IF_ERROR(failed);
    }
    out_ += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(Separate(i, level + 1));
      TANDEM_RETURN_IF_ERROR(WriteKey(members[i]->first));
      TANDEM_RETURN_IF_ERROR(budget_.Bytes(style_.key_separator.size()));
      out_ += style_.key_separator;
      TANDEM_RETURN_IF_ERROR(Write(members[i]->second, level + 1));
    }
    if (!members.empty()) TANDEM_RETURN_IF_ERROR(BeginLine(level));
    out_ += '}';
    return absl::OkStatus();
  }

  const JinjaJsonStyle& style_;
  JinjaBudget& budget_;
  std::string out_;
};

absl::StatusOr<std::string> SeparatorOf(const JinjaValue& value) {
  if (value.AsString() == nullptr)
    return absl::InvalidArgumentError("tojson expects separators of two texts");
  return *value.AsString();
}

}  // namespace

absl::StatusOr<std::string> JinjaToJson(const JinjaValue& value, const JinjaJsonStyle& style,
                                        JinjaBudget& budget) {
  JsonWriter writer(style, budget);
  TANDEM_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Finish();
}

absl::StatusOr<JinjaValue> JinjaToJsonFilter(const JinjaValue& value, const JinjaArguments& arguments,
                                             JinjaBudget& budget) {
  JinjaJsonStyle style;
  if (const JinjaValue* given = arguments.Find(0, "ensure_ascii")) style.ensure_ascii = given->IsTrue();
  if (const JinjaValue* given = arguments.Find(1, "indent"); given != nullptr && !given->IsNone()) {
    const bool* flag = given->As<bool>();
    const int64_t* width = given->As<int64_t>();
    if (given->AsString() != nullptr) {
      style.indent = *given->AsString();
    } else if (flag != nullptr || (width != nullptr && *width <= 1000)) {
      const int64_t count = flag != nullptr ? (*flag ? 1 : 0) : std::max<int64_t>(*width, 0);
      style.indent = std::string(static_cast<size_t>(count), ' ');
    } else {
      return absl::InvalidArgumentError("tojson expects an indent of a text, or of at most 1000 blanks");
    }
    style.item_separator = ",";
  }
  if (const JinjaValue* given = arguments.Find(2, "separators"); given != nullptr && !given->IsNone()) {
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items pair, JinjaIterate(*given, budget));
    if (pair.size() != 2) return absl::InvalidArgumentError("tojson expects two separators");
    TANDEM_ASSIGN_OR_RETURN(style.item_separator, SeparatorOf(pair[0]));
    TANDEM_ASSIGN_OR_RETURN(style.key_separator, SeparatorOf(pair[1]));
  }
  if (const JinjaValue* given = arguments.Find(3, "sort_keys")) style.sort_keys = given->IsTrue();
  TANDEM_ASSIGN_OR_RETURN(std::string json, JinjaToJson(value, style, budget));
  TANDEM_RETURN_IF_ERROR(budget.Bytes(json.size()));
  return JinjaValue::String(std::move(json));
}

}  // namespace tandem
