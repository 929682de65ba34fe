#include "common/tokenizer/jinja/python_format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/python_text.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

using Text = absl::StatusOr<std::string>;

constexpr int64_t kMaxWidth = int64_t{1} << 40;  // The budget is the real bound.
constexpr int64_t kMaxPrecision = 300;

// [[fill]align][sign][#][0][width][grouping][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = 0;  // One of < > ^ =, or 0.
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = 0;
  std::optional<int> precision;
  char type = 0;
};

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("format: ", what));
}

// A number at the front of `text`; nullopt without one.
std::optional<int64_t> TakeNumber(absl::string_view& text) {
  size_t length = 0;
  while (length < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[length]))) ++length;
  int64_t number = 0;
  if (length == 0 || !absl::SimpleAtoi(text.substr(0, length), &number)) return std::nullopt;
  text.remove_prefix(length);
  return std::min(number, kMaxWidth);
}

absl::StatusOr<Spec> ParseSpec(absl::string_view text) {
  Spec spec;
  const auto is_align = [](absl::string_view rest) {
    return !rest.empty() && absl::StrContains("<>^=", rest.substr(0, 1));
  };
  const size_t first = text.empty() ? 0 : ReadUtf8(text).length;
  if (is_align(text.substr(first))) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    text.remove_prefix(first + 1);
  } else if (is_align(text)) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty() && absl::StrContains("+- ", text.substr(0, 1))) {
    spec.sign = text[0];
    text.remove_prefix(1);
  }
  if (absl::StartsWith(text, "#")) {
    spec.alternate = true;
    text.remove_prefix(1);
  }
  if (absl::StartsWith(text, "0")) {
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '0';  // '=' for numbers, '<' for texts.
    }
    text.remove_prefix(1);
  }
  spec.width = TakeNumber(text).value_or(0);
  if (!text.empty() && (text[0] == ',' || text[0] == '_')) {
    spec.grouping = text[0];
    text.remove_prefix(1);
  }
  if (absl::StartsWith(text, ".")) {
    text.remove_prefix(1);
    const std::optional<int64_t> precision = TakeNumber(text);
    if (!precision.has_value()) return Bad("a precision is missing");
    spec.precision = static_cast<int>(std::min<int64_t>(*precision, 1 << 30));
  }
  if (text.size() > 1) return Bad("invalid specification");
  if (!text.empty()) spec.type = text[0];
  return spec;
}

// The digits of a magnitude in a base.
std::string Digits(uint64_t magnitude, unsigned base, bool upper) {
  const char* letters = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits.insert(digits.begin(), letters[magnitude % base]);
    magnitude /= base;
  } while (magnitude > 0);
  return digits;
}

// Separators between every `group` digits of the whole part.
std::string Grouped(const std::string& number, char separator, size_t group) {
  if (separator == 0) return number;
  const size_t whole = std::min(number.find_first_not_of("0123456789abcdefABCDEF"), number.size());
  std::string grouped;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % group == 0) grouped += separator;
    grouped += number[i];
  }
  return grouped + number.substr(whole);
}

Text Aligned(const std::string& prefix, std::string body, const Spec& spec, JinjaBudget& budget) {
  const auto length = static_cast<int64_t>(CountCharacters(prefix) + CountCharacters(body));
  if (spec.width <= length) return prefix + body;
  if (spec.align == '=' || spec.align == '0') {
    if (spec.grouping != 0 && spec.fill == "0") {
      // Zeros are grouped as digits are.
      const size_t group = absl::StrContains("bxXo", std::string(1, spec.type ? spec.type : 'd')) ? 4 : 3;
      TANDEM_RETURN_IF_ERROR(budget.Bytes(static_cast<size_t>(spec.width)));
      std::string digits;
      for (const char c : body) {
        if (c != spec.grouping) digits += c;
      }
      std::string grouped = body;
      while (static_cast<int64_t>(prefix.size() + grouped.size()) < spec.width) {
        digits.insert(digits.begin(), '0');
        TANDEM_RETURN_IF_ERROR(budget.Bytes(digits.size()));
        grouped = Grouped(digits, spec.grouping, group);
      }
      return prefix + grouped;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string padded,
                            PythonPad(body, spec.width - static_cast<int64_t>(CountCharacters(prefix)),
                                      spec.fill, TextAlignment::kRight, budget));
    return prefix + padded;
  }
  const std::string whole = prefix + body;
  if (spec.align != '^') {
    return PythonPad(whole, spec.width, spec.fill,
                     spec.align == '<' ? TextAlignment::kLeft : TextAlignment::kRight, budget);
  }
  // Unlike str.center, the smaller half is always on the left.
  const int64_t left = (spec.width - length) / 2;
  TANDEM_ASSIGN_OR_RETURN(const std::string padded,
                          PythonPad(whole, length + left, spec.fill, TextAlignment::kRight, budget));
  return PythonPad(padded, spec.width, spec.fill, TextAlignment::kLeft, budget);
}

std::string SignOf(bool negative, char sign) {
  return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

// The digits of a float's magnitude in a presentation.
Text FloatDigits(double magnitude, char type, std::optional<int> precision, bool alternate) {
  if (precision.value_or(0) > kMaxPrecision) return Bad("the precision is too large");
  const bool upper = absl::ascii_isupper(static_cast<unsigned char>(type));
  if (std::isnan(magnitude)) return std::string(upper ? "NAN" : "nan");
  if (std::isinf(magnitude)) return std::string(upper ? "INF" : "inf");
  if (type == 0 && !precision.has_value()) {
    JinjaBudget budget(10, 1000);
    return JinjaToRepr(JinjaValue::Float(magnitude), budget);
  }
  int digits = precision.value_or(6);
  char conversion = type == 0 || type == 'n' ? 'g' : type == '%' ? 'f' : type;
  if (conversion == 'g' || conversion == 'G') digits = std::max(digits, 1);
  const std::string format = absl::StrCat("%", alternate ? "#" : "", ".", digits, std::string(1, conversion));
  char buffer[1024];
  const double shown = type == '%' ? magnitude * 100 : magnitude;
  const int length = std::snprintf(buffer, sizeof(buffer), format.c_str(), shown);
  if (length < 0 || static_cast<size_t>(length) >= sizeof(buffer)) return Bad("the number is too long");
  std::string text(buffer, static_cast<size_t>(length));
  if (type == 0 && text.find_first_of(".en") == std::string::npos) text += ".0";
  if (type == '%') text += '%';
  return text;
}

Text FormatFloat(double value, Spec spec, JinjaBudget& budget) {
  if (spec.type != 0 && !absl::StrContains("eEfFgGn%", std::string(1, spec.type)))
    return Bad("unknown type for a float");
  TANDEM_ASSIGN_OR_RETURN(const std::string digits,
                          FloatDigits(std::fabs(value), spec.type, spec.precision, spec.alternate));
  return Aligned(SignOf(std::signbit(value) && !std::isnan(value), spec.sign),
                 Grouped(digits, spec.grouping, 3), spec, budget);
}

Text FormatInteger(int64_t value, Spec spec, JinjaBudget& budget) {
  if (spec.type != 0 && absl::StrContains("eEfFgG%", std::string(1, spec.type)))
    return FormatFloat(static_cast<double>(value), spec, budget);
  if (spec.precision.has_value()) return Bad("an integer has no precision");
  const uint64_t magnitude =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string prefix = SignOf(value < 0, spec.sign);
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      return Aligned(prefix, Grouped(Digits(magnitude, 10, false), spec.grouping, 3), spec, budget);
    case 'b':
    case 'o':
    case 'x':
    case 'X': {
      const unsigned base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : 16;
      if (spec.grouping == ',') return Bad("',' goes with decimal digits alone");
      if (spec.alternate) absl::StrAppend(&prefix, "0", std::string(1, spec.type));
      return Aligned(prefix, Grouped(Digits(magnitude, base, spec.type == 'X'), spec.grouping, 4), spec,
                     budget);
    }
    case 'c': {
      if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        return Bad("not a character's number");
      std::string character;
      AppendUtf8(static_cast<uint32_t>(value), character);
      if (spec.align == 0) spec.align = '<';
      return Aligned("", std::move(character), spec, budget);
    }
    default:
      return Bad("unknown type for an integer");
  }
}

Text FormatText(absl::string_view text, Spec spec, JinjaBudget& budget) {
  if ((spec.type != 0 && spec.type != 's') || spec.align == '=' || spec.sign != '-' || spec.alternate ||
      spec.grouping != 0)
    return Bad("invalid specification for a text");
  if (spec.align == 0 || spec.align == '0') spec.align = '<';
  if (spec.precision.has_value()) {
    text = CharacterRange(text, 0,
                          std::min<size_t>(static_cast<size_t>(*spec.precision), CountCharacters(text)));
  }
  return Aligned("", std::string(text), spec, budget);
}

// Python's format(value, spec).
Text FormatValue(const JinjaValue& value, absl::string_view spec_text, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Step());
  if (spec_text.empty()) return JinjaToText(value, budget);
  TANDEM_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(spec_text));
  if (const std::string* text = value.AsString()) {
    TANDEM_RETURN_IF_ERROR(budget.Bytes(text->size()));
    return FormatText(*text, spec, budget);
  }
  if (const bool* flag = value.As<bool>()) return FormatInteger(*flag ? 1 : 0, spec, budget);
  if (const int64_t* integer = value.As<int64_t>()) return FormatInteger(*integer, spec, budget);
  if (const double* number = value.As<double>()) return FormatFloat(*number, spec, budget);
  return Bad(absl::StrCat("a value of type ", value.TypeName(), " takes no specification"));
}

// The fields of str.format, one after the other.
class BraceFormatter {
 public:
  BraceFormatter(const JinjaArguments& arguments, JinjaBudget& budget)
      : arguments_(arguments), budget_(budget) {}

  Text Format(absl::string_view format, int depth) {
    if (depth > 2) return Bad("specifications nest too deeply");
    std::string out;
    while (!format.empty()) {
      const char c = format[0];
      if (c != '{' && c != '}') {
        const size_t length = std::min(format.find_first_of("{}"), format.size());
        absl::StrAppend(&out, format.substr(0, length));
        format.remove_prefix(length);
        continue;
      }
      if (format.size() > 1 && format[1] == c) {
        out += c;
        format.remove_prefix(2);
        continue;
      }
      if (c == '}') return Bad("a single '}'");
      TANDEM_ASSIGN_OR_RETURN(const size_t end, EndOfField(format));
      TANDEM_ASSIGN_OR_RETURN(const std::string field, Field(format.substr(1, end - 1), depth));
      TANDEM_RETURN_IF_ERROR(budget_.Bytes(field.size()));
      out += field;
      format.remove_prefix(end + 1);
    }
    return out;
  }

 private:
  static absl::StatusOr<size_t> EndOfField(absl::string_view format) {
    int open = 0;
    for (size_t at = 0; at < format.size(); ++at) {
      if (format[at] == '{') ++open;
      if (format[at] == '}' && --open == 0) return at;
    }
    return Bad("a '{' is not closed");
  }

  Text Field(absl::string_view field, int depth) {
    size_t end = 0;
    bool in_brackets = false;
    for (; end < field.size(); ++end) {
      if (field[end] == '[') in_brackets = true;
      if (field[end] == ']') in_brackets = false;
      if (!in_brackets && (field[end] == '!' || field[end] == ':')) break;
    }
    TANDEM_ASSIGN_OR_RETURN(JinjaValue value, ValueOf(field.substr(0, end)));
    field.remove_prefix(end);
    if (absl::StartsWith(field, "!")) {
      if (field.size() < 2 || (field.size() > 2 && field[2] != ':')) return Bad("a bad conversion");
      TANDEM_ASSIGN_OR_RETURN(std::string text,
                              field[1] == 's' ? JinjaToText(value, budget_) : JinjaToRepr(value, budget_));
      if (field[1] == 'a') text = PythonAscii(text);
      if (!absl::StrContains("sra", field.substr(1, 1))) return Bad("an unknown conversion");
      value = JinjaValue::String(std::move(text));
      field.remove_prefix(2);
    }
    std::string spec;
    if (absl::StartsWith(field, ":")) {
      TANDEM_ASSIGN_OR_RETURN(spec, Format(field.substr(1), depth + 1));
    }
    return FormatValue(value, spec, budget_);
  }

  absl::StatusOr<JinjaValue> ValueOf(absl::string_view name) {
    const absl::string_view first = name.substr(0, std::min(name.find_first_of(".["), name.size()));
    absl::string_view rest = name.substr(first.size());
    TANDEM_ASSIGN_OR_RETURN(JinjaValue value, ArgumentOf(first));
    while (!rest.empty()) {
      const bool is_item = rest[0] == '[';
      rest.remove_prefix(1);
      const size_t end = is_item ? rest.find(']') : std::min(rest.find_first_of(".["), rest.size());
      if (end == absl::string_view::npos || end == 0) return Bad("a bad field name");
      const std::string key(rest.substr(0, end));
      rest.remove_prefix(is_item ? end + 1 : end);
      if (!rest.empty() && rest[0] != '.' && rest[0] != '[') return Bad("a bad field name");
      int64_t index = 0;
      if (is_item && absl::SimpleAtoi(key, &index)) {
        TANDEM_ASSIGN_OR_RETURN(value, JinjaItem(value, JinjaValue::Int(index), budget_));
      } else if (is_item) {
        TANDEM_ASSIGN_OR_RETURN(value, JinjaItem(value, JinjaValue::String(key), budget_));
      } else {
        TANDEM_ASSIGN_OR_RETURN(value, JinjaAttribute(value, key, budget_));
      }
    }
    return value;
  }

  absl::StatusOr<JinjaValue> ArgumentOf(absl::string_view name) {
    absl::string_view digits = name;
    std::optional<int64_t> index = TakeNumber(digits);
    if (name.empty()) index = next_++;
    if (name.empty() || (index.has_value() && digits.empty())) {
      numbers_ += name.empty() ? 1 : 0;
      names_ += name.empty() ? 0 : 1;
      if (numbers_ > 0 && names_ > 0) return Bad("fields with and without numbers");
      if (static_cast<size_t>(*index) >= arguments_.positional.size()) return Bad("an argument is missing");
      return arguments_.positional[static_cast<size_t>(*index)];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    return Bad(absl::StrCat("there is no argument '", name, "'"));
  }

  const JinjaArguments& arguments_;
  JinjaBudget& budget_;
  int64_t next_ = 0;
  int numbers_ = 0;
  int names_ = 0;
};

// The conversions of `format % values`.
class PercentFormatter {
 public:
  PercentFormatter(const JinjaValue& values, JinjaBudget& budget) : values_(values), budget_(budget) {
    const JinjaValue::Items* items = values.AsItems();
    if (values.IsTuple()) {
      items_ = *items;
    } else {
      items_.push_back(values);
      // Python asks only whether it has items by key.
      is_mapping_ = values.AsDict() != nullptr || values.IsUndefined() || values.IsRange() ||
                    (items != nullptr && values.ListKind().empty());
    }
  }

  Text Format(absl::string_view format) {
    std::string out;
    while (!format.empty()) {
      const size_t length = std::min(format.find('%'), format.size());
      absl::StrAppend(&out, format.substr(0, length));
      format.remove_prefix(length);
      if (format.empty()) break;
      format.remove_prefix(1);
      TANDEM_ASSIGN_OR_RETURN(const std::string converted, Convert(format));
      TANDEM_RETURN_IF_ERROR(budget_.Bytes(converted.size()));
      out += converted;
    }
    if (next_ < items_.size() && !is_mapping_) return Bad("not all arguments are used");
    return out;
  }

 private:
  absl::StatusOr<JinjaValue> Next() {
    if (next_ >= items_.size()) return Bad("not enough arguments");
    return items_[next_++];
  }

  absl::StatusOr<int64_t> NextNumber(absl::string_view& format) {
    if (!absl::StartsWith(format, "*")) return TakeNumber(format).value_or(0);
    format.remove_prefix(1);
    TANDEM_ASSIGN_OR_RETURN(const JinjaValue value, Next());
    if (value.As<int64_t>() == nullptr) return Bad("'*' wants an integer");
    return std::clamp(*value.As<int64_t>(), -kMaxWidth, kMaxWidth);
  }

  Text Convert(absl::string_view& format) {
    TANDEM_RETURN_IF_ERROR(budget_.Step());
    std::optional<JinjaValue> named;
    if (absl::StartsWith(format, "(")) {
      const size_t end = format.find(')');
      if (end == absl::string_view::npos) return Bad("a '(' is not closed");
      if (values_.AsDict() == nullptr) return Bad("names want a dict");
      const JinjaValue* found =
          values_.AsDict()->Find(JinjaValue::String(std::string(format.substr(1, end - 1))));
      if (found == nullptr) return Bad(absl::StrCat("there is no '", format.substr(1, end - 1), "'"));
      named = *found;
      format.remove_prefix(end + 1);
    }
    Spec spec{.align = '>'};
    bool zero = false;
    for (; !format.empty() && absl::StrContains("#0- +", format.substr(0, 1)); format.remove_prefix(1)) {
      if (format[0] == '#') spec.alternate = true;
      if (format[0] == '0') zero = true;
      if (format[0] == '-') spec.align = '<';
      if (format[0] == '+' || (format[0] == ' ' && spec.sign != '+')) spec.sign = format[0];
    }
    TANDEM_ASSIGN_OR_RETURN(spec.width, NextNumber(format));
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (absl::StartsWith(format, ".")) {
      format.remove_prefix(1);
      TANDEM_ASSIGN_OR_RETURN(const int64_t precision, NextNumber(format));
      spec.precision = static_cast<int>(std::clamp<int64_t>(precision, 0, 1 << 30));
    }
    while (!format.empty() && absl::StrContains("hlL", format.substr(0, 1))) format.remove_prefix(1);
    if (format.empty()) return Bad("an incomplete '%'");
    const char type = format[0];
    format.remove_prefix(1);
    if (type == '%') return std::string("%");
    JinjaValue value;
    if (named.has_value()) {
      value = *std::move(named);
      ++next_;
    } else {
      TANDEM_ASSIGN_OR_RETURN(value, Next());
    }
    if (zero && spec.align == '>' && !absl::StrContains("srac", std::string(1, type))) {
      spec.align = '=';
      spec.fill = "0";
    }
    return Converted(value, type, spec);
  }

  Text Converted(const JinjaValue& value, char type, Spec spec) {
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        TANDEM_ASSIGN_OR_RETURN(std::string text,
                                type == 's' ? JinjaToText(value, budget_) : JinjaToRepr(value, budget_));
        if (type == 'a') text = PythonAscii(text);
        spec.sign = '-';
        spec.alternate = false;
        return FormatText(text, spec, budget_);
      }
      case 'c': {
        if (value.AsString() != nullptr) {
          if (CountCharacters(*value.AsString()) != 1) return Bad("%c wants one character");
          return Aligned("", *value.AsString(), spec, budget_);
        }
        spec.type = 'c';
        spec.precision.reset();
        if (value.As<int64_t>() == nullptr) return Bad("%c wants a character");
        return FormatInteger(*value.As<int64_t>(), spec, budget_);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return Integer(value, type, spec);
      default:
        break;
    }
    if (!absl::StrContains("eEfFgG", std::string(1, type)))
      return Bad(absl::StrCat("unknown type '", std::string(1, type), "'"));
    spec.type = type;
    spec.grouping = 0;
    const std::optional<double> number = NumberOf(value);
    if (!number.has_value()) return Bad("a number is wanted");
    return FormatFloat(*number, spec, budget_);
  }

  static std::optional<double> NumberOf(const JinjaValue& value) {
    if (const double* number = value.As<double>()) return *number;
    if (const int64_t* integer = value.As<int64_t>()) return static_cast<double>(*integer);
    if (const bool* flag = value.As<bool>()) return *flag ? 1.0 : 0.0;
    return std::nullopt;
  }

  Text Integer(const JinjaValue& value, char type, Spec spec) {
    const std::optional<double> number = NumberOf(value);
    const bool is_decimal = type == 'd' || type == 'i' || type == 'u';
    if (!number.has_value() || (!is_decimal && value.As<double>() != nullptr))
      return Bad("an integer is wanted");
    if (value.As<double>() != nullptr && !(std::fabs(*number) < 9e18))
      return Bad("an integer overflows 64 bits");
    const int64_t* exact = value.As<int64_t>();
    const int64_t integer = exact != nullptr ? *exact : static_cast<int64_t>(*number);
    const uint64_t magnitude =
        integer < 0 ? uint64_t{0} - static_cast<uint64_t>(integer) : static_cast<uint64_t>(integer);
    std::string digits = Digits(magnitude, is_decimal ? 10 : type == 'o' ? 8 : 16, type == 'X');
    if (spec.precision.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(digits,
                              PythonPad(digits, *spec.precision, "0", TextAlignment::kRight, budget_));
    }
    std::string prefix = SignOf(integer < 0, spec.sign);
    if (spec.alternate && !is_decimal) absl::StrAppend(&prefix, "0", std::string(1, type));
    return Aligned(prefix, std::move(digits), spec, budget_);
  }

  const JinjaValue& values_;
  JinjaBudget& budget_;
  JinjaValue::Items items_;
  bool is_mapping_ = false;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::string> PythonPercentFormat(absl::string_view format, const JinjaValue& values,
                                                JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(format.size()));
  return PercentFormatter(values, budget).Format(format);
}

absl::StatusOr<std::string> PythonBraceFormat(absl::string_view format, const JinjaArguments& arguments,
                                              JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(format.size()));
  return BraceFormatter(arguments, budget).Format(format, 0);
}

absl::StatusOr<std::string> PythonPad(absl::string_view text, int64_t width, absl::string_view fill,
                                      TextAlignment alignment, JinjaBudget& budget) {
  const auto length = static_cast<int64_t>(CountCharacters(text));
  const int64_t missing = std::max<int64_t>(width - length, 0);
  TANDEM_RETURN_IF_ERROR(budget.Bytes(text.size()));
  if (missing > kMaxWidth / 4) TANDEM_RETURN_IF_ERROR(budget.Bytes(static_cast<size_t>(kMaxWidth)));
  TANDEM_RETURN_IF_ERROR(budget.Bytes(static_cast<size_t>(missing) * fill.size()));
  // As in CPython, an odd character goes to the left if the width is odd.
  const int64_t left = alignment == TextAlignment::kLeft    ? 0
                       : alignment == TextAlignment::kRight ? missing
                                                            : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) absl::StrAppend(&out, fill);
  absl::StrAppend(&out, text);
  for (int64_t i = left; i < missing; ++i) absl::StrAppend(&out, fill);
  return out;
}

std::string PythonAscii(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    text.remove_prefix(unit.length);
    const uint32_t c = unit.code_point;
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", c);
    }
  }
  return out;
}

}  // namespace tandem
