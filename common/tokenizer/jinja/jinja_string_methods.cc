#include "common/tokenizer/jinja/jinja_string_methods.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_catalog.h"
#include "common/tokenizer/jinja/python_format.h"
#include "common/tokenizer/jinja/python_text.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

using Result = absl::StatusOr<JinjaValue>;
using Method = Result (*)(const std::string&, const JinjaArguments&, JinjaBudget&);

absl::StatusOr<std::optional<absl::string_view>> OptionalText(const JinjaArguments& arguments, size_t index,
                                                              absl::string_view name) {
  const JinjaValue* value = arguments.Find(index, name);
  if (value == nullptr || value->IsNone()) return std::nullopt;
  if (value->AsString() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("expected a string, found ", value->TypeName()));
  }
  return std::optional<absl::string_view>(*value->AsString());
}

absl::StatusOr<absl::string_view> RequiredText(const JinjaArguments& arguments, size_t index,
                                               absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text, OptionalText(arguments, index, name));
  if (!text.has_value()) return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' is missing"));
  return *text;
}

absl::StatusOr<int64_t> IntegerOr(const JinjaArguments& arguments, size_t index, absl::string_view name,
                                  int64_t if_absent) {
  const JinjaValue* value = arguments.Find(index, name);
  if (value == nullptr) return if_absent;
  if (const bool* flag = value->As<bool>()) return *flag ? 1 : 0;
  if (value->As<int64_t>() == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' is not an integer"));
  return *value->As<int64_t>();
}

Result TextList(std::vector<std::string> parts, JinjaBudget& budget, const char* kind = "") {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(parts.size() * sizeof(JinjaValue)));
  JinjaValue::Items items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.push_back(JinjaValue::String(std::move(part)));
  return JinjaValue::List(std::move(items), kind);
}

// The part of a text between two places, which arguments 1 and 2 give in characters as for a slice.
struct TextPart {
  absl::string_view text;
  int64_t begin = 0;  // Characters in front of it.
  bool exists = true;
};

absl::StatusOr<TextPart> PartOf(const std::string& text, const JinjaArguments& arguments) {
  const auto length = static_cast<int64_t>(CountCharacters(text));
  int64_t bounds[2] = {0, length};
  for (size_t i = 0; i < 2; ++i) {
    if (i + 1 >= arguments.positional.size() || arguments.positional[i + 1].IsNone()) continue;
    TANDEM_ASSIGN_OR_RETURN(bounds[i], IntegerOr(arguments, i + 1, i == 0 ? "start" : "end", 0));
    if (bounds[i] < 0) bounds[i] = std::max<int64_t>(bounds[i] + length, 0);
  }
  bounds[1] = std::min(bounds[1], length);
  if (bounds[0] > bounds[1]) return TextPart{.text = "", .begin = bounds[0], .exists = false};
  return TextPart{.text = CharacterRange(text, static_cast<size_t>(bounds[0]),
                                         static_cast<size_t>(bounds[1] - bounds[0])),
                  .begin = bounds[0]};
}

Result HasAffix(const std::string& text, const JinjaArguments& arguments, bool at_start,
                JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const TextPart part, PartOf(text, arguments));
  const auto matches = [&](absl::string_view affix) {
    return part.exists && (at_start ? absl::StartsWith(part.text, affix) : absl::EndsWith(part.text, affix));
  };
  const JinjaValue* affix = arguments.Find(0, "prefix");
  if (affix == nullptr || (affix->AsString() == nullptr && !affix->IsTuple())) {
    return absl::InvalidArgumentError("startswith and endswith expect a string or a tuple of them");
  }
  if (affix->AsString() != nullptr) return JinjaValue::Bool(matches(*affix->AsString()));
  for (const JinjaValue& choice : *affix->AsItems()) {
    TANDEM_RETURN_IF_ERROR(budget.Step());
    if (choice.AsString() != nullptr && matches(*choice.AsString())) return JinjaValue::Bool(true);
  }
  return JinjaValue::Bool(false);
}

// find, rfind, index and rindex.
Result FindText(const std::string& text, const JinjaArguments& arguments, bool last, bool must_be_there) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view wanted, RequiredText(arguments, 0, "sub"));
  TANDEM_ASSIGN_OR_RETURN(const TextPart part, PartOf(text, arguments));
  const size_t at = !part.exists ? absl::string_view::npos
                    : last       ? part.text.rfind(wanted)
                                 : part.text.find(wanted);
  if (at != absl::string_view::npos)
    return JinjaValue::Int(part.begin + static_cast<int64_t>(CountCharacters(part.text.substr(0, at))));
  if (must_be_there) return absl::InvalidArgumentError("the text that index looks for is not there");
  return JinjaValue::Int(-1);
}

Result CountText(const std::string& text, const JinjaArguments& arguments, JinjaBudget&) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view wanted, RequiredText(arguments, 0, "sub"));
  TANDEM_ASSIGN_OR_RETURN(const TextPart part, PartOf(text, arguments));
  if (!part.exists) return JinjaValue::Int(0);
  if (wanted.empty()) return JinjaValue::Int(static_cast<int64_t>(CountCharacters(part.text)) + 1);
  int64_t count = 0;
  for (size_t at = part.text.find(wanted); at != absl::string_view::npos;
       at = part.text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return JinjaValue::Int(count);
}

Result StripText(const std::string& text, const JinjaArguments& arguments, StripSide side,
                 JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<absl::string_view> characters,
                          OptionalText(arguments, 0, "chars"));
  if (characters.has_value()) TANDEM_RETURN_IF_ERROR(budget.Bytes(characters->size() * text.size()));
  return JinjaValue::String(std::string(PythonStrip(text, characters, side)));
}

Result SplitText(const std::string& text, const JinjaArguments& arguments, bool from_right,
                 JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<absl::string_view> separator,
                          OptionalText(arguments, 0, "sep"));
  if (separator.has_value() && separator->empty())
    return absl::InvalidArgumentError("split at an empty string");
  TANDEM_ASSIGN_OR_RETURN(const int64_t most, IntegerOr(arguments, 1, "maxsplit", -1));
  // Charged in advance: at worst, every byte is a part.
  TANDEM_RETURN_IF_ERROR(budget.Bytes(separator.has_value() ? text.size() / separator->size() : text.size()));
  return TextList(from_right ? PythonRightSplit(text, separator, most) : PythonSplit(text, separator, most),
                  budget);
}

Result PartitionText(const std::string& text, const JinjaArguments& arguments, bool from_right,
                     JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view separator, RequiredText(arguments, 0, "sep"));
  if (separator.empty()) return absl::InvalidArgumentError("partition at an empty string");
  const absl::string_view whole = text;
  const size_t at = from_right ? whole.rfind(separator) : whole.find(separator);
  std::vector<std::string> parts;
  if (at == absl::string_view::npos) {
    parts = from_right ? std::vector<std::string>{"", "", text} : std::vector<std::string>{text, "", ""};
  } else {
    parts = {std::string(whole.substr(0, at)), std::string(separator),
             std::string(whole.substr(at + separator.size()))};
  }
  return TextList(std::move(parts), budget, JinjaValue::kTuple);
}

Result ReplaceText(const std::string& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view old, RequiredText(arguments, 0, "old"));
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view replacement, RequiredText(arguments, 1, "new"));
  int64_t left = -1;
  if (const JinjaValue* limit = arguments.Find(2, "count"); limit != nullptr && !limit->IsNone()) {
    TANDEM_ASSIGN_OR_RETURN(left, IntegerOr(arguments, 2, "count", -1));
  }
  std::string out;
  absl::string_view rest = text;
  while (left != 0) {
    const size_t at = rest.find(old);
    if (at == absl::string_view::npos) break;
    TANDEM_RETURN_IF_ERROR(budget.Bytes(at + replacement.size() + 1));
    absl::StrAppend(&out, rest.substr(0, at), replacement);
    rest.remove_prefix(at + old.size());
    --left;
    if (!old.empty()) continue;
    // In front of every character, and behind the last.
    if (rest.empty()) break;
    const size_t length = ReadUtf8(rest).length;
    absl::StrAppend(&out, rest.substr(0, length));
    rest.remove_prefix(length);
  }
  absl::StrAppend(&out, rest);
  return JinjaValue::String(std::move(out));
}

Result JoinTexts(const std::string& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  const JinjaValue* parts = arguments.Find(0, "iterable");
  if (parts == nullptr) return absl::InvalidArgumentError("join expects a list");
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue::Items items, JinjaIterate(*parts, budget));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].AsString() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("join expects strings, found ", items[i].TypeName(), " at ", i));
    }
    TANDEM_RETURN_IF_ERROR(budget.Bytes(text.size() + items[i].AsString()->size()));
    absl::StrAppend(&out, i == 0 ? "" : text, *items[i].AsString());
  }
  return JinjaValue::String(std::move(out));
}

Result PadText(const std::string& text, const JinjaArguments& arguments, TextAlignment alignment,
               JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t width, IntegerOr(arguments, 0, "width", 0));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<absl::string_view> fill,
                          OptionalText(arguments, 1, "fillchar"));
  if (fill.has_value() && CountCharacters(*fill) != 1)
    return absl::InvalidArgumentError("the fill is not one character");
  TANDEM_ASSIGN_OR_RETURN(std::string padded, PythonPad(text, width, fill.value_or(" "), alignment, budget));
  return JinjaValue::String(std::move(padded));
}

Result FillWithZeros(const std::string& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t width, IntegerOr(arguments, 0, "width", 0));
  const bool is_signed = !text.empty() && (text[0] == '-' || text[0] == '+');
  TANDEM_ASSIGN_OR_RETURN(
      const std::string digits,
      PythonPad(absl::string_view(text).substr(is_signed ? 1 : 0), is_signed && width > 0 ? width - 1 : width,
                "0", TextAlignment::kRight, budget));
  return JinjaValue::String((is_signed ? text.substr(0, 1) : "") + digits);
}

Result ExpandTabs(const std::string& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t size, IntegerOr(arguments, 0, "tabsize", 8));
  std::string out;
  int64_t column = 0;
  for (const char c : text) {
    if (c != '\t') {
      out += c;
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++column;
      if (c == '\n' || c == '\r') column = 0;
      continue;
    }
    const int64_t blanks = size > 0 ? size - column % size : 0;
    TANDEM_RETURN_IF_ERROR(budget.Bytes(static_cast<size_t>(blanks)));
    out.append(static_cast<size_t>(blanks), ' ');
    column += blanks;
  }
  return JinjaValue::String(std::move(out));
}

Result SplitLines(const std::string& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  const JinjaValue* keep = arguments.Find(0, "keepends");
  return TextList(PythonSplitLines(text, keep != nullptr && keep->IsTrue()), budget);
}

Result FormatMap(const std::string& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  const JinjaValue* mapping = arguments.Find(0, "mapping");
  if (mapping == nullptr || mapping->AsDict() == nullptr)
    return absl::InvalidArgumentError("format_map expects a dict");
  JinjaArguments named;
  for (const auto& [key, value] : mapping->AsDict()->members) {
    if (key.AsString() != nullptr) named.named.emplace_back(*key.AsString(), value);
  }
  TANDEM_ASSIGN_OR_RETURN(std::string out, PythonBraceFormat(text, named, budget));
  return JinjaValue::String(std::move(out));
}

Result Format(const std::string& text, const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_ASSIGN_OR_RETURN(std::string out, PythonBraceFormat(text, arguments, budget));
  return JinjaValue::String(std::move(out));
}

Result RemoveAffix(const std::string& text, const JinjaArguments& arguments, bool at_start) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view affix, RequiredText(arguments, 0, "prefix"));
  absl::string_view rest = text;
  if (at_start) {
    absl::ConsumePrefix(&rest, affix);
  } else {
    absl::ConsumeSuffix(&rest, affix);
  }
  return JinjaValue::String(std::string(rest));
}

struct NamedMethod {
  Method call;
  JinjaSignature signature;
};

using Methods = absl::flat_hash_map<absl::string_view, NamedMethod>;

// A method without arguments that makes another text.
template <std::string (*kMake)(absl::string_view)>
NamedMethod Makes() {
  return {[](const std::string& text, const JinjaArguments&, JinjaBudget&) -> Result {
            return JinjaValue::String(kMake(text));
          },
          {}};
}

// A method without arguments that asks something.
template <bool (*kAsk)(absl::string_view)>
NamedMethod Asks() {
  return {[](const std::string& text, const JinjaArguments&, JinjaBudget&) -> Result {
            return JinjaValue::Bool(kAsk(text));
          },
          {}};
}

void AddSearches(Methods& methods) {
  const JinjaSignature places{.parameters = {"sub", "start", "end"}, .required = 1, .positional_only = true};
  methods["startswith"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget& b) { return HasAffix(t, a, true, b); },
      places};
  methods["endswith"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget& b) { return HasAffix(t, a, false, b); },
      places};
  methods["find"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget&) {
                       return FindText(t, a, false, false);
                     },
                     places};
  methods["rfind"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget&) { return FindText(t, a, true, false); },
      places};
  methods["index"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget&) { return FindText(t, a, false, true); },
      places};
  methods["rindex"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget&) { return FindText(t, a, true, true); },
      places};
  methods["count"] = {CountText, places};
}

void AddCuts(Methods& methods) {
  const JinjaSignature strips{.parameters = {"chars"}, .positional_only = true};
  methods["strip"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                        return StripText(t, a, StripSide::kBoth, b);
                      },
                      strips};
  methods["lstrip"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                         return StripText(t, a, StripSide::kLeft, b);
                       },
                       strips};
  methods["rstrip"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                         return StripText(t, a, StripSide::kRight, b);
                       },
                       strips};
  const JinjaSignature splits{.parameters = {"sep", "maxsplit"}};
  methods["split"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget& b) { return SplitText(t, a, false, b); },
      splits};
  methods["rsplit"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget& b) { return SplitText(t, a, true, b); },
      splits};
  const JinjaSignature one{.parameters = {"sep"}, .required = 1, .positional_only = true};
  methods["partition"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                            return PartitionText(t, a, false, b);
                          },
                          one};
  methods["rpartition"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                             return PartitionText(t, a, true, b);
                           },
                           one};
  methods["removeprefix"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget&) { return RemoveAffix(t, a, true); },
      one};
  methods["removesuffix"] = {
      [](const std::string& t, const JinjaArguments& a, JinjaBudget&) { return RemoveAffix(t, a, false); },
      one};
  methods["splitlines"] = {SplitLines, {.parameters = {"keepends"}}};
}

void AddLayouts(Methods& methods) {
  const JinjaSignature pads{.parameters = {"width", "fillchar"}, .required = 1, .positional_only = true};
  methods["center"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                         return PadText(t, a, TextAlignment::kCenter, b);
                       },
                       pads};
  methods["ljust"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                        return PadText(t, a, TextAlignment::kLeft, b);
                      },
                      pads};
  methods["rjust"] = {[](const std::string& t, const JinjaArguments& a, JinjaBudget& b) {
                        return PadText(t, a, TextAlignment::kRight, b);
                      },
                      pads};
  methods["zfill"] = {FillWithZeros, {.parameters = {"width"}, .required = 1, .positional_only = true}};
  methods["expandtabs"] = {ExpandTabs, {.parameters = {"tabsize"}}};
  methods["replace"] = {ReplaceText,
                        {.parameters = {"old", "new", "count"}, .required = 2, .positional_only = true}};
  methods["join"] = {JoinTexts, {.parameters = {"iterable"}, .required = 1, .positional_only = true}};
  methods["format"] = {Format, {.takes_any = true}};
  methods["format_map"] = {FormatMap, {.parameters = {"mapping"}, .required = 1, .positional_only = true}};
}

const Methods& StringMethods() {
  static const auto* methods = [] {
    auto* made = new Methods{
        {"upper", Makes<PythonUpper>()},
        {"lower", Makes<PythonLower>()},
        {"title", Makes<PythonTitle>()},
        {"capitalize", Makes<PythonCapitalize>()},
        {"casefold", Makes<PythonCaseFold>()},
        {"swapcase", Makes<PythonSwapCase>()},
        {"isalnum", Asks<PythonIsAlnum>()},
        {"isalpha", Asks<PythonIsAlpha>()},
        {"isascii", Asks<PythonIsAscii>()},
        {"isdecimal", Asks<PythonIsDecimal>()},
        {"isdigit", Asks<PythonIsDigit>()},
        {"isidentifier", Asks<PythonIsIdentifier>()},
        {"islower", Asks<PythonIsLower>()},
        {"isnumeric", Asks<PythonIsNumeric>()},
        {"isprintable", Asks<PythonIsPrintable>()},
        {"isspace", Asks<PythonIsSpace>()},
        {"istitle", Asks<PythonIsTitle>()},
        {"isupper", Asks<PythonIsUpper>()},
    };
    AddSearches(*made);
    AddCuts(*made);
    AddLayouts(*made);
    return made;
  }();
  return *methods;
}

}  // namespace

bool HasPythonStringMethod(absl::string_view name) {
  return StringMethods().contains(name);
}

absl::StatusOr<JinjaValue> CallPythonStringMethod(const std::string& text, absl::string_view name,
                                                  const JinjaArguments& arguments, JinjaBudget& budget) {
  TANDEM_RETURN_IF_ERROR(budget.Bytes(text.size()));
  const NamedMethod& method = StringMethods().at(name);
  TANDEM_RETURN_IF_ERROR(CheckJinjaCall(method.signature, absl::StrCat("str.", name), arguments));
  return method.call(text, arguments, budget);
}

}  // namespace tandem
