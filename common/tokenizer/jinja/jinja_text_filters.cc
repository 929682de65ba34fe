#include "common/tokenizer/jinja/jinja_text_filters.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_interpreter.h"
#include "common/tokenizer/jinja/jinja_json.h"
#include "common/tokenizer/jinja/python_format.h"
#include "common/tokenizer/jinja/python_text.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

using Result = absl::StatusOr<JinjaValue>;

absl::StatusOr<int64_t> IntegerUnlessNone(const JinjaArguments& arguments, size_t index,
                                          absl::string_view name, int64_t if_absent) {
  const JinjaValue* value = arguments.Find(index, name);
  if (value == nullptr || value->IsNone()) return if_absent;
  if (const bool* flag = value->As<bool>()) return *flag ? 1 : 0;
  if (value->As<int64_t>() == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' is not an integer"));
  return *value->As<int64_t>();
}

Result EscapeFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  if (value.IsMarkup()) return value;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget));
  std::string escaped = JinjaEscaped(text);
  TANDEM_RETURN_IF_ERROR(budget.Bytes(escaped.size()));
  return JinjaValue::Markup(std::move(escaped));
}

Result ForceEscapeFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  if (!value.IsMarkup()) return EscapeFilter(value, arguments, budget);
  return EscapeFilter(JinjaValue::String(*value.AsString()), arguments, budget);
}

Result SafeFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, JinjaToText(value, budget));
  return JinjaValue::Markup(std::move(text));
}

Result CenterFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget));
  TANDEM_ASSIGN_OR_RETURN(const int64_t width, IntegerUnlessNone(arguments, 0, "width", 80));
  TANDEM_ASSIGN_OR_RETURN(std::string padded, PythonPad(text, width, " ", TextAlignment::kCenter, budget));
  return JinjaTextLike(value, std::move(padded));
}

Result FormatFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget));
  if (!arguments.positional.empty() && !arguments.named.empty())
    return absl::InvalidArgumentError("format expects either named arguments or others");
  JinjaValue::Members members;
  for (const auto& [name, member] : arguments.named) members.emplace_back(JinjaValue::String(name), member);
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue values,
                          members.empty() ? JinjaValue::List(arguments.positional, JinjaValue::kTuple)
                                          : JinjaValue::Dict(std::move(members)));
  return JinjaArithmetic("%", JinjaTextLike(value, text), values, budget);
}

Result IndentFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  if (value.AsString() == nullptr) return absl::InvalidArgumentError("indent expects a string");
  const std::string& text = *value.AsString();
  const JinjaValue* width = arguments.Find(0, "width");
  std::string indent(4, ' ');
  if (width != nullptr && width->AsString() != nullptr) {
    indent = *width->AsString();
  } else if (width != nullptr) {
    const int64_t* count = width->As<int64_t>();
    if (count == nullptr || *count > 1000)
      return absl::InvalidArgumentError("indent expects a width of at most 1000");
    indent.assign(static_cast<size_t>(std::max<int64_t>(*count, 0)), ' ');
  }
  const bool first = arguments.IsSet(1, "first");
  const bool blank = arguments.IsSet(2, "blank");
  const std::vector<std::string> lines = PythonSplitLines(text + "\n", /*keep_ends=*/false);
  TANDEM_RETURN_IF_ERROR(budget.Bytes(text.size() + lines.size() * (indent.size() + 1)));
  std::string indented = first ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool indents = i > 0 && (blank || !lines[i].empty());
    absl::StrAppend(&indented, i == 0 ? "" : "\n", indents ? indent : "", lines[i]);
  }
  return JinjaTextLike(value, std::move(indented));
}

Result TruncateFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue full_length, ApplyJinjaFilter("length", value, {}, budget));
  const int64_t length = *full_length.As<int64_t>();
  TANDEM_ASSIGN_OR_RETURN(const int64_t most, IntegerUnlessNone(arguments, 0, "length", 255));
  TANDEM_ASSIGN_OR_RETURN(const int64_t leeway, IntegerUnlessNone(arguments, 3, "leeway", 5));
  std::string end = "...";
  if (const JinjaValue* given = arguments.Find(2, "end")) {
    TANDEM_ASSIGN_OR_RETURN(end, JinjaToText(*given, budget));
  }
  const auto end_length = static_cast<int64_t>(CountCharacters(end));
  if (most < end_length || leeway < 0 || most > (int64_t{1} << 40))
    return absl::InvalidArgumentError("truncate expects a length that has room for the end");
  // Anything with a length that is not cut stays as it is.
  if (length <= most || length - most <= leeway) return value;
  if (value.AsString() == nullptr) return absl::InvalidArgumentError("truncate expects a string");
  absl::string_view kept = CharacterRange(*value.AsString(), 0, static_cast<size_t>(most - end_length));
  if (!arguments.IsSet(1, "killwords")) kept = kept.substr(0, kept.rfind(' '));
  return JinjaTextLike(value, absl::StrCat(kept, end));
}

Result FileSizeFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget&) {
  double bytes = 0;
  if (const int64_t* integer = value.As<int64_t>()) {
    bytes = static_cast<double>(*integer);
  } else if (const double* number = value.As<double>()) {
    bytes = *number;
  } else if (const bool* flag = value.As<bool>()) {
    bytes = *flag ? 1 : 0;
  } else {
    const std::optional<double> parsed =
        value.AsString() == nullptr ? std::nullopt : PythonFloat(*value.AsString());
    if (!parsed.has_value()) return absl::InvalidArgumentError("filesizeformat expects a number");
    bytes = *parsed;
  }
  const bool binary = arguments.IsSet(0, "binary");
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return JinjaValue::String("1 Byte");
  if (bytes < -9e18) return absl::InvalidArgumentError("an integer overflows 64 bits");
  if (bytes < base) return JinjaValue::String(absl::StrFormat("%d Bytes", static_cast<int64_t>(bytes)));
  static constexpr char kPrefixes[] = "kMGTPEZY";
  double unit = base;
  size_t at = 0;
  for (; at + 1 < sizeof(kPrefixes) - 1 && !(bytes < unit * base); ++at) unit *= base;
  std::string prefix(1, kPrefixes[at]);
  if (binary) prefix = absl::StrCat(at == 0 ? "K" : prefix, "i");
  return JinjaValue::String(absl::StrFormat("%.1f %sB", bytes / unit, prefix));
}

std::string Quoted(absl::string_view text, bool in_query) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_.-~", std::string(1, c)) ||
        (c == '/' && !in_query)) {
      out += c;
    } else if (c == ' ' && in_query) {
      out += '+';
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Result UrlEncodeFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  const bool has_pairs = value.AsDict() != nullptr || value.AsItems() != nullptr;
  std::string out;
  if (!has_pairs) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget));
    out = Quoted(text, /*in_query=*/false);
  } else {
    JinjaValue pairs = value;
    if (value.AsDict() != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(pairs, CallJinjaMethod(value, "items", {}, budget));
    }
    for (const JinjaValue& pair : *pairs.AsItems()) {
      TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items two, JinjaIterate(pair, budget));
      if (two.size() != 2) return absl::InvalidArgumentError("urlencode expects pairs");
      TANDEM_ASSIGN_OR_RETURN(const std::string name, JinjaToText(two[0], budget));
      TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(two[1], budget));
      absl::StrAppend(&out, out.empty() ? "" : "&", Quoted(name, true), "=", Quoted(text, true));
    }
  }
  TANDEM_RETURN_IF_ERROR(budget.Bytes(out.size()));
  return JinjaValue::String(std::move(out));
}

Result WordCountFilter(const JinjaValue& value, const JinjaArguments&, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, JinjaToText(value, budget));
  int64_t words = 0;
  bool in_word = false;
  for (absl::string_view rest = text; !rest.empty();) {
    const size_t length = ReadUtf8(rest).length;
    const absl::string_view character = rest.substr(0, length);
    const bool is_word = character == "_" || PythonIsAlnum(character);
    if (is_word && !in_word) ++words;
    in_word = is_word;
    rest.remove_prefix(length);
  }
  return JinjaValue::Int(words);
}

Result XmlAttributesFilter(const JinjaValue& value, const JinjaArguments& arguments, JinjaBudget& budget) {
  if (value.AsDict() == nullptr) return absl::InvalidArgumentError("xmlattr expects a dict");
  std::string out;
  for (const auto& [key, member] : value.AsDict()->members) {
    if (member.IsNone() || member.IsUndefined()) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string name, JinjaToText(key, budget));
    if (std::any_of(name.begin(), name.end(), [](char c) {
          return absl::ascii_isspace(static_cast<unsigned char>(c)) || c == '/' || c == '>' || c == '=';
        }))
      return absl::InvalidArgumentError("xmlattr: a name of an attribute has a blank, '/', '>' or '='");
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue escaped, EscapeFilter(member, {}, budget));
    const bool separated =
        !out.empty() || arguments.Find(0, "autospace") == nullptr || arguments.Find(0, "autospace")->IsTrue();
    absl::StrAppend(&out, separated ? " " : "", JinjaEscaped(name), "=\"", *escaped.AsString(), "\"");
  }
  TANDEM_RETURN_IF_ERROR(budget.Bytes(out.size()));
  return JinjaValue::String(std::move(out));
}

}  // namespace

JinjaValue JinjaTextLike(const JinjaValue& value, std::string text) {
  return value.IsMarkup() ? JinjaValue::Markup(std::move(text)) : JinjaValue::String(std::move(text));
}

const absl::flat_hash_map<absl::string_view, JinjaFilter>& JinjaTextFilters() {
  static const auto* filters = new absl::flat_hash_map<absl::string_view, JinjaFilter>{
      {"center", CenterFilter},           {"e", EscapeFilter},
      {"escape", EscapeFilter},           {"filesizeformat", FileSizeFilter},
      {"forceescape", ForceEscapeFilter}, {"format", FormatFilter},
      {"indent", IndentFilter},           {"safe", SafeFilter},
      {"tojson", JinjaToJsonFilter},      {"truncate", TruncateFilter},
      {"urlencode", UrlEncodeFilter},     {"wordcount", WordCountFilter},
      {"xmlattr", XmlAttributesFilter},
  };
  return *filters;
}

}  // namespace tandem
