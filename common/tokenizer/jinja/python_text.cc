#include "common/tokenizer/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/tokenizer/jinja/jinja_lexer.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

size_t LastCharacterBegin(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool IsStripped(absl::string_view character, std::optional<absl::string_view> characters) {
  if (!characters.has_value()) return IsPythonSpace(ReadUtf8(character).code_point);
  return characters->find(character) != absl::string_view::npos;
}

bool IsCased(uint32_t code_point) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

enum class LetterCase { kUpper, kLower, kTitle };

void AppendCased(uint32_t code_point, LetterCase letter_case, std::string& out) {
  const auto c = static_cast<utf8proc_int32_t>(code_point);
  if (code_point == 0xDF && letter_case != LetterCase::kLower) {
    out += letter_case == LetterCase::kUpper ? "SS" : "Ss";  // sharp s has no single upper case letter
    return;
  }
  const utf8proc_int32_t mapped = letter_case == LetterCase::kUpper   ? utf8proc_toupper(c)
                                  : letter_case == LetterCase::kLower ? utf8proc_tolower(c)
                                                                      : utf8proc_totitle(c);
  AppendUtf8(static_cast<uint32_t>(mapped), out);
}

std::vector<std::string> SplitAtWhiteSpace(absl::string_view text, int64_t max_splits) {
  std::vector<std::string> parts;
  text = PythonStrip(text, std::nullopt, StripSide::kLeft);
  while (!text.empty()) {
    size_t end = 0;
    const bool is_last = max_splits >= 0 && static_cast<int64_t>(parts.size()) >= max_splits;
    while (end < text.size()) {
      const Utf8Unit unit = ReadUtf8(text.substr(end));
      if (!is_last && IsPythonSpace(unit.code_point)) break;
      end += unit.length;
    }
    parts.emplace_back(text.substr(0, end));
    text = PythonStrip(text.substr(end), std::nullopt, StripSide::kLeft);
  }
  return parts;
}

}  // namespace

absl::string_view PythonStrip(absl::string_view text, std::optional<absl::string_view> characters,
                              StripSide side) {
  while (side != StripSide::kRight && !text.empty()) {
    const size_t length = ReadUtf8(text).length;
    if (!IsStripped(text.substr(0, length), characters)) break;
    text.remove_prefix(length);
  }
  while (side != StripSide::kLeft && !text.empty()) {
    const size_t begin = LastCharacterBegin(text);
    if (!IsStripped(text.substr(begin), characters)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::vector<std::string> PythonSplit(absl::string_view text, std::optional<absl::string_view> separator,
                                     int64_t max_splits) {
  if (!separator.has_value()) return SplitAtWhiteSpace(text, max_splits);
  std::vector<std::string> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = text.find(*separator);
    if (at == absl::string_view::npos) break;
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> PythonRightSplit(absl::string_view text, std::optional<absl::string_view> separator,
                                          int64_t max_splits) {
  std::vector<std::string> parts;
  const auto may_split = [&] { return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits; };
  if (separator.has_value()) {
    while (may_split()) {
      const size_t at = text.rfind(*separator);
      if (at == absl::string_view::npos) break;
      parts.emplace_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    }
    parts.emplace_back(text);
  } else {
    text = PythonStrip(text, std::nullopt, StripSide::kRight);
    while (!text.empty()) {
      size_t begin = may_split() ? text.size() : 0;
      while (begin > 0) {
        const size_t last = LastCharacterBegin(text.substr(0, begin));
        if (IsPythonSpace(ReadUtf8(text.substr(last)).code_point)) break;
        begin = last;
      }
      parts.emplace_back(text.substr(begin));
      text = PythonStrip(text.substr(0, begin), std::nullopt, StripSide::kRight);
    }
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> PythonSplitLines(absl::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Unit unit = ReadUtf8(text.substr(end));
    const uint32_t c = unit.code_point;
    const bool breaks =
        (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) {
      end += unit.length;
      continue;
    }
    const size_t length = c == '\r' && text.substr(end + 1, 1) == "\n" ? 2 : unit.length;
    lines.emplace_back(text.substr(0, keep_ends ? end + length : end));
    text.remove_prefix(end + length);
    end = 0;
  }
  if (!text.empty()) lines.emplace_back(text);
  return lines;
}

std::string PythonCaseFold(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    text.remove_prefix(unit.length);
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(unit.code_point),
                                                           folded, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, 8); ++i)
      AppendUtf8(static_cast<uint32_t>(folded[i]), out);
  }
  return out;
}

std::string PythonSwapCase(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    const auto c = static_cast<utf8proc_int32_t>(unit.code_point);
    if (utf8proc_isupper(c) != 0) {
      out += PythonLower(text.substr(0, unit.length));
    } else {
      AppendCased(unit.code_point, utf8proc_islower(c) != 0 ? LetterCase::kUpper : LetterCase::kLower, out);
    }
    text.remove_prefix(unit.length);
  }
  return out;
}

std::string PythonUpper(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    AppendCased(unit.code_point, LetterCase::kUpper, out);
    text.remove_prefix(unit.length);
  }
  return out;
}

std::string PythonLower(absl::string_view text) {
  return LowercaseUnicode(text);
}

std::string PythonTitle(absl::string_view text) {
  std::string out;
  bool in_word = false;
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    AppendCased(unit.code_point, in_word ? LetterCase::kLower : LetterCase::kTitle, out);
    in_word = IsCased(unit.code_point);
    text.remove_prefix(unit.length);
  }
  return out;
}

std::string PythonCapitalize(absl::string_view text) {
  std::string out;
  if (text.empty()) return out;
  const Utf8Unit unit = ReadUtf8(text);
  AppendCased(unit.code_point, LetterCase::kTitle, out);
  return out + PythonLower(text.substr(unit.length));
}

std::string PythonDigits(absl::string_view text) {
  const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) digits += text[i];
  }
  return digits;
}

std::optional<double> PythonFloat(absl::string_view text) {
  const std::string digits = PythonDigits(PythonStrip(text, std::nullopt, StripSide::kBoth));
  double number = 0;
  // Python's floats have no hexadecimal form, and its NaN no payload.
  if (digits.find_first_of("xX(") != std::string::npos || !absl::SimpleAtod(digits, &number))
    return std::nullopt;
  return number;
}

absl::string_view CharacterRange(absl::string_view text, size_t begin, size_t count) {
  while (begin-- > 0) text.remove_prefix(ReadUtf8(text).length);
  size_t length = 0;
  while (count-- > 0) length += ReadUtf8(text.substr(length)).length;
  return text.substr(0, length);
}

}  // namespace tandem
