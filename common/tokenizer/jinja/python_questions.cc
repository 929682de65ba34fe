// str.isalnum() and the other questions of python_text.h.

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "common/tokenizer/jinja/jinja_lexer.h"
#include "common/tokenizer/jinja/python_text.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

utf8proc_category_t CategoryOf(uint32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

// Unicode's Numeric_Type=Digit, which are no decimal digits.
struct Range {
  uint32_t first;
  uint32_t last;
};
constexpr Range kOtherDigits[] = {
    {0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
    {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
    {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
    {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

// The commonest ideographs that are numbers.
constexpr uint32_t kIdeographs[] = {0x4E00, 0x4E03, 0x4E07, 0x4E09, 0x4E5D, 0x4E8C, 0x4E94, 0x4EBF, 0x4EDF,
                                    0x5104, 0x5146, 0x516B, 0x516D, 0x5341, 0x5343, 0x56DB, 0x767E, 0x842C};

bool IsDecimal(uint32_t c) {
  return CategoryOf(c) == UTF8PROC_CATEGORY_ND;
}
bool HasDigitValue(uint32_t c) {
  const auto contains = [c](const Range& range) { return c >= range.first && c <= range.last; };
  return IsDecimal(c) || std::any_of(std::begin(kOtherDigits), std::end(kOtherDigits), contains);
}
bool IsNumber(uint32_t c) {
  return tandem::IsNumeric(c) ||
         std::find(std::begin(kIdeographs), std::end(kIdeographs), c) != std::end(kIdeographs);
}
bool IsAlpha(uint32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsAlnum(uint32_t c) {
  return IsAlpha(c) || HasDigitValue(c) || IsNumber(c);
}
bool IsLower(uint32_t c) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}
bool IsTitle(uint32_t c) {
  return CategoryOf(c) == UTF8PROC_CATEGORY_LT;
}
bool IsUpper(uint32_t c) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0 && !IsTitle(c);
}

template <typename Holds>
bool HoldsForAll(absl::string_view text, bool if_empty, Holds holds) {
  if (text.empty()) return if_empty;
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    if (!holds(unit.code_point)) return false;
    text.remove_prefix(unit.length);
  }
  return true;
}

// Whether there is a letter with case, and none of another one.
bool IsCased(absl::string_view text, bool (*wanted)(uint32_t), bool (*other)(uint32_t)) {
  bool found = false;
  return HoldsForAll(text, false,
                     [&](uint32_t c) {
                       found = found || wanted(c);
                       return !other(c) && !IsTitle(c);
                     }) &&
         found;
}

}  // namespace

bool PythonIsAlnum(absl::string_view text) {
  return HoldsForAll(text, false, IsAlnum);
}
bool PythonIsAlpha(absl::string_view text) {
  return HoldsForAll(text, false, IsAlpha);
}
bool PythonIsAscii(absl::string_view text) {
  return HoldsForAll(text, true, [](uint32_t c) { return c < 0x80; });
}
bool PythonIsDecimal(absl::string_view text) {
  return HoldsForAll(text, false, IsDecimal);
}
bool PythonIsDigit(absl::string_view text) {
  return HoldsForAll(text, false, HasDigitValue);
}
bool PythonIsIdentifier(absl::string_view text) {
  bool is_first = true;
  return HoldsForAll(text, false, [&](uint32_t c) {
    const utf8proc_category_t category = CategoryOf(c);
    const bool starts = c == '_' || IsAlpha(c) || category == UTF8PROC_CATEGORY_NL;
    const bool goes_on = starts || IsDecimal(c) || category == UTF8PROC_CATEGORY_MN ||
                         category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_PC;
    const bool good = is_first ? starts : goes_on;
    is_first = false;
    return good;
  });
}
bool PythonIsLower(absl::string_view text) {
  return IsCased(text, IsLower, IsUpper);
}
bool PythonIsNumeric(absl::string_view text) {
  return HoldsForAll(text, false, [](uint32_t c) { return HasDigitValue(c) || IsNumber(c); });
}
bool PythonIsPrintable(absl::string_view text) {
  return HoldsForAll(text, true, IsPythonPrintable);
}
bool PythonIsSpace(absl::string_view text) {
  return HoldsForAll(text, false, IsPythonSpace);
}
bool PythonIsTitle(absl::string_view text) {
  bool found = false;
  bool in_word = false;
  return HoldsForAll(text, false,
                     [&](uint32_t c) {
                       const bool is_capital = IsUpper(c) || IsTitle(c);
                       const bool is_small = IsLower(c);
                       if ((is_capital && in_word) || (is_small && !in_word)) return false;
                       in_word = is_capital || is_small;
                       found = found || in_word;
                       return true;
                     }) &&
         found;
}
bool PythonIsUpper(absl::string_view text) {
  return IsCased(text, IsUpper, IsLower);
}

bool IsPythonPrintable(uint32_t code_point) {
  if (code_point == ' ') return true;
  switch (CategoryOf(code_point)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return false;
    default:
      return true;
  }
}

}  // namespace tandem
