#include "common/grammar/regex_text.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem {

namespace {

// What XGrammar writes a class as has `^` plain, which negates the class if it is the first: so it comes
// last.
class ClassText {
 public:
  explicit ClassText(std::string* plain) : plain_(plain), begin_(plain->size()) { plain_->push_back('['); }

  void Negate() { plain_->push_back('^'); }
  void Add(absl::string_view text) {
    if (ends_range_) {
      // Of the range that began with the caret, the next character begins what is left.
      ends_range_ = false;
      if (IsCaret(text)) return;
      plain_->append("_-");
    } else if (IsCaret(text) && plain_->size() == begin_ + 1) {
      has_caret_ = true;
      return;
    } else if (text == "-" && has_caret_ && plain_->size() == begin_ + 1) {
      ends_range_ = true;
      return;
    }
    absl::StrAppend(plain_, text);
  }
  void End() {
    if (ends_range_) plain_->push_back('-');
    if (has_caret_ && plain_->size() == begin_ + 1) {
      plain_->resize(begin_);
      plain_->append("\\^");
      return;
    }
    if (has_caret_) absl::StrAppend(plain_, kCaret);
    plain_->push_back(']');
  }

  static constexpr absl::string_view kCaret = "\\u005e";

 private:
  static bool IsCaret(absl::string_view text) { return text == kCaret || text == "^"; }

  std::string* const plain_;
  const size_t begin_;
  bool has_caret_ = false;
  bool ends_range_ = false;
};

// The code point of an escape of so many hexadecimal digits, of which `digits` begins with the first.
std::optional<uint32_t> CodeOf(absl::string_view digits, size_t count) {
  uint32_t code = 0;
  if (digits.size() < count) return std::nullopt;
  for (const char digit : digits.substr(0, count)) {
    if (!absl::ascii_isxdigit(digit)) return std::nullopt;
    const int value = absl::ascii_isdigit(digit) ? digit - '0' : absl::ascii_tolower(digit) - 'a' + 10;
    code = 16 * code + static_cast<uint32_t>(value);
  }
  return code;
}

// An escape of a code point. XGrammar's \x takes all digits that follow, and in a class it writes such an
// escape itself for what has no letter of its own: there the character stands as it is.
std::string Escape(uint32_t code, bool in_class) {
  constexpr absl::string_view kWithLetter("\0\a\b\t\n\v\f\r\x1b", 9);
  const bool has_letter = code < 0x80 && absl::StrContains(kWithLetter, static_cast<char>(code));
  if (in_class && !has_letter && (code < 0x20 || code == 0x7f))
    return std::string(1, static_cast<char>(code));
  if (in_class && code >= 0x80 && code < 0x100) {
    return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  }
  return absl::StrCat("\\u", absl::Hex(code, absl::kZeroPad4));
}

}  // namespace

std::string PlainRegex(absl::string_view pattern) {
  std::string plain;
  std::optional<ClassText> in_class;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    std::string text(1, c);
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      text.push_back(escaped);
      const size_t num_digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : 0;
      const std::optional<uint32_t> code = CodeOf(pattern.substr(i + 1), num_digits);
      if (num_digits > 0 && code.has_value()) {
        text = Escape(*code, in_class.has_value());
        i += num_digits;
      } else if (in_class.has_value() && absl::ascii_ispunct(escaped)) {
        text = absl::StrCat("\\u", absl::Hex(static_cast<unsigned char>(escaped), absl::kZeroPad4));
      }
    } else if (c == '.' && !in_class.has_value()) {
      text = R"([^\n\r\u2028\u2029])";
    } else if (c == '[' && !in_class.has_value()) {
      in_class.emplace(&plain);
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') {
        in_class->Negate();
        ++i;
      }
      continue;
    } else if (c == ']' && in_class.has_value()) {
      in_class->End();
      in_class.reset();
      continue;
    }
    if (in_class.has_value()) {
      in_class->Add(text);
    } else {
      plain += text;
    }
  }
  return plain;
}

}  // namespace tandem
