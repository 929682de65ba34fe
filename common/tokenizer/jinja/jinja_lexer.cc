#include "common/tokenizer/jinja/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

using Kind = JinjaToken::Kind;

// Longest first.
constexpr absl::string_view kOperators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                            "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                            "]",  "{",  "}",  "|",  ",",  ".",  ":"};

bool IsNameStart(char c) {
  return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_';
}
bool IsNamePart(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
}
bool IsDigit(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c));
}

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : rest_(source) {}

  absl::StatusOr<std::vector<JinjaToken>> Run() {
    while (!rest_.empty()) {
      TANDEM_RETURN_IF_ERROR(ReadText());
      if (rest_.empty()) break;
      const char kind = rest_[1];
      Advance(2);
      if (!rest_.empty() && (rest_[0] == '-' || rest_[0] == '+')) Advance(1);
      if (kind == '#') {
        TANDEM_RETURN_IF_ERROR(SkipComment());
      } else if (const size_t raw = kind == '%' ? TagLength(rest_, "raw") : 0; raw > 0) {
        TANDEM_RETURN_IF_ERROR(ReadRaw(raw));
      } else {
        TANDEM_RETURN_IF_ERROR(ReadTag(kind == '%'));
      }
    }
    Add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Malformed(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }

  void Add(Kind kind, absl::string_view text) {
    tokens_.push_back(JinjaToken{kind, std::string(text), 0, 0, line_});
  }

  void Advance(size_t count) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + count, '\n'));
    rest_.remove_prefix(count);
  }

  // Reads plain text up to the next tag, and strips it as the tag demands.
  absl::Status ReadText() {
    size_t end = 0;
    while (end < rest_.size()) {
      end = rest_.find('{', end);
      if (end == absl::string_view::npos || end + 1 >= rest_.size()) {
        end = rest_.size();
        break;
      }
      if (rest_[end + 1] == '{' || rest_[end + 1] == '%' || rest_[end + 1] == '#') break;
      ++end;
    }
    absl::string_view text = rest_.substr(0, end);
    if (end < rest_.size()) {
      const char sign = end + 2 < rest_.size() ? rest_[end + 2] : '\0';
      if (sign == '-') {
        text = StripRight(text);
      } else if (sign != '+' && rest_[end + 1] != '{') {
        text = StripIndentation(text);
      }
    }
    if (!text.empty()) Add(Kind::kText, text);
    Advance(end);
    return absl::OkStatus();
  }

  static absl::string_view StripRight(absl::string_view text) {
    while (!text.empty()) {
      size_t at = text.size() - 1;
      while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
      if (!IsPythonSpace(ReadUtf8(text.substr(at)).code_point)) break;
      text.remove_suffix(text.size() - at);
    }
    return text;
  }

  // lstrip_blocks: drops the blanks before a tag that begins its line.
  absl::string_view StripIndentation(absl::string_view text) const {
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == absl::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !at_line_start_) return text;
    return StripRight(text).size() <= line_begin ? text.substr(0, line_begin) : text;
  }

  size_t SpaceLength(absl::string_view text) const {
    size_t length = 0;
    while (length < text.size()) {
      const Utf8Unit unit = ReadUtf8(text.substr(length));
      if (!IsPythonSpace(unit.code_point)) break;
      length += unit.length;
    }
    return length;
  }

  // Leaves a tag whose end marker, with its sign, has `length` bytes. A '-' strips the white space after it.
  // Blocks and comments also drop one newline.
  void EndTag(size_t length, bool trims_newline) {
    const char sign = rest_[0];
    size_t total = length;
    if (sign == '-') {
      total += SpaceLength(rest_.substr(length));
    } else if (trims_newline && sign != '+' && absl::StartsWith(rest_.substr(length), "\n")) {
      ++total;
    }
    at_line_start_ = rest_[total - 1] == '\n';
    Advance(total);
  }

  absl::Status SkipComment() {
    const size_t end = rest_.find("#}");
    if (end == absl::string_view::npos) return Malformed("a comment is not ended by '#}'");
    const bool has_sign = end > 0 && (rest_[end - 1] == '-' || rest_[end - 1] == '+');
    Advance(has_sign ? end - 1 : end);
    EndTag(has_sign ? 3 : 2, true);
    return absl::OkStatus();
  }

  // If a tag contains only `name`, the number of bytes up to its end marker with its sign; otherwise 0.
  size_t TagLength(absl::string_view text, absl::string_view name) const {
    size_t length = SpaceLength(text);
    if (!absl::StartsWith(text.substr(length), name)) return 0;
    length += name.size();
    length += SpaceLength(text.substr(length));
    const absl::string_view end = text.substr(length);
    const bool has_sign = absl::StartsWith(end, "-") || absl::StartsWith(end, "+");
    return absl::StartsWith(end.substr(has_sign ? 1 : 0), "%}") ? length : 0;
  }

  // Reads `{% raw %}`. Its end marker is `length` bytes after its beginning. Everything up to `{% endraw %}`
  // is text.
  absl::Status ReadRaw(size_t length) {
    const auto end_tag = [&](bool trims_newline) {
      EndTag(rest_[0] == '-' || rest_[0] == '+' ? 3 : 2, trims_newline);
    };
    Advance(length);
    end_tag(/*trims_newline=*/false);
    for (size_t at = rest_.find("{%"); at != absl::string_view::npos; at = rest_.find("{%", at + 2)) {
      const absl::string_view tag = rest_.substr(at + 2);
      const char sign = tag.empty() || (tag[0] != '-' && tag[0] != '+') ? '\0' : tag[0];
      const size_t skipped = sign == '\0' ? 0 : 1;
      const size_t end = TagLength(tag.substr(skipped), "endraw");
      if (end == 0) continue;
      const absl::string_view text = rest_.substr(0, at);
      const absl::string_view kept = sign == '-'   ? StripRight(text)
                                     : sign == '+' ? text
                                                   : StripIndentation(text);
      if (!kept.empty()) Add(Kind::kText, kept);
      Advance(at + 2 + skipped + end);
      end_tag(/*trims_newline=*/true);
      return absl::OkStatus();
    }
    return Malformed("expected '{% endraw %}'");
  }

  absl::Status ReadTag(bool is_block) {
    const absl::string_view marker = is_block ? "%}" : "}}";
    Add(is_block ? Kind::kBlockBegin : Kind::kOutputBegin, "");
    std::string open_brackets;
    while (true) {
      Advance(SpaceLength(rest_));
      if (rest_.empty()) return Malformed(absl::StrCat("a tag is not ended by '", marker, "'"));
      if (open_brackets.empty()) {
        const bool has_sign = rest_[0] == '-' || (is_block && rest_[0] == '+');
        if (absl::StartsWith(rest_.substr(has_sign ? 1 : 0), marker)) {
          Add(is_block ? Kind::kBlockEnd : Kind::kOutputEnd, "");
          EndTag(has_sign ? 3 : 2, is_block);
          return absl::OkStatus();
        }
      }
      TANDEM_RETURN_IF_ERROR(ReadToken(open_brackets));
    }
  }

  absl::Status ReadToken(std::string& open_brackets) {
    const char c = rest_[0];
    if (c == '\'' || c == '"') return ReadString();
    if (IsDigit(c)) return ReadNumber();
    if (IsNameStart(c)) {
      size_t length = 1;
      while (length < rest_.size() && IsNamePart(rest_[length])) ++length;
      Add(Kind::kName, rest_.substr(0, length));
      Advance(length);
      return absl::OkStatus();
    }
    for (absl::string_view op : kOperators) {
      if (!absl::StartsWith(rest_, op)) continue;
      if (c == '(' || c == '[' || c == '{') open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty() || open_brackets.back() != c)
          return Malformed(absl::StrCat("unexpected '", op, "'"));
        open_brackets.pop_back();
      }
      Add(Kind::kOperator, op);
      Advance(op.size());
      return absl::OkStatus();
    }
    return Malformed(absl::StrCat("unexpected character '", rest_.substr(0, ReadUtf8(rest_).length), "'"));
  }

  // Such as 0x1F.
  absl::Status ReadPrefixedNumber(int base) {
    size_t length = 2;
    std::string digits;
    while (length < rest_.size() && IsNamePart(rest_[length])) {
      if (rest_[length] != '_') digits += rest_[length];
      ++length;
    }
    Add(Kind::kInteger, rest_.substr(0, length));
    int64_t& value = tokens_.back().integer;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
      return Malformed(absl::StrCat("'", tokens_.back().text, "' is no number, or too large"));
    Advance(length);
    return absl::OkStatus();
  }

  absl::Status ReadNumber() {
    for (const auto& [letter, base] : {std::pair<char, int>{'x', 16}, {'o', 8}, {'b', 2}}) {
      if (rest_.size() > 2 && rest_[0] == '0' && (rest_[1] | 0x20) == letter) return ReadPrefixedNumber(base);
    }
    size_t length = 0;
    std::string digits;
    const auto take_digits = [&] {
      while (length < rest_.size() && (IsDigit(rest_[length]) || rest_[length] == '_')) {
        if (rest_[length] != '_') digits += rest_[length];
        ++length;
      }
    };
    take_digits();
    bool is_float = false;
    if (length + 1 < rest_.size() && rest_[length] == '.' && IsDigit(rest_[length + 1])) {
      is_float = true;
      digits += rest_[length++];
      take_digits();
    }
    const size_t sign =
        length + 1 < rest_.size() && (rest_[length + 1] == '-' || rest_[length + 1] == '+') ? 1 : 0;
    const bool has_exponent = length + 1 + sign < rest_.size() && (rest_[length] | 0x20) == 'e' &&
                              IsDigit(rest_[length + 1 + sign]);
    if (has_exponent) {
      is_float = true;
      absl::StrAppend(&digits, rest_.substr(length, 1 + sign));
      length += 1 + sign;
      take_digits();
    }
    Add(is_float ? Kind::kFloat : Kind::kInteger, rest_.substr(0, length));
    JinjaToken& token = tokens_.back();
    const bool ok =
        is_float ? absl::SimpleAtod(digits, &token.number) : absl::SimpleAtoi(digits, &token.integer);
    if (!ok) return Malformed(absl::StrCat("number '", token.text, "' is too large"));
    Advance(length);
    return absl::OkStatus();
  }

  absl::Status ReadString() {
    const char quote = rest_[0];
    std::string value;
    size_t at = 1;
    while (at < rest_.size() && rest_[at] != quote) {
      if (rest_[at] != '\\') {
        value += rest_[at++];
        continue;
      }
      TANDEM_RETURN_IF_ERROR(ReadEscape(at, value));
    }
    if (at >= rest_.size()) return Malformed("a string is not ended");
    Add(Kind::kString, value);
    Advance(at + 1);
    return absl::OkStatus();
  }

  // Reads the escape sequence at `at`, as Python does, and moves past it.
  absl::Status ReadEscape(size_t& at, std::string& value) {
    if (at + 1 >= rest_.size()) return Malformed("a string is not ended");
    static constexpr absl::string_view kLetters = "ntrabfv\\'\"";
    static constexpr absl::string_view kValues = "\n\t\r\a\b\f\v\\'\"";
    const char letter = rest_[at + 1];
    at += 2;
    if (letter == '\n') return absl::OkStatus();
    const size_t simple = kLetters.find(letter);
    if (simple != absl::string_view::npos) {
      value += kValues[simple];
      return absl::OkStatus();
    }
    size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    uint32_t code_point = 0;
    if (digits == 0 && letter >= '0' && letter <= '7') {
      for (--at; digits < 3 && at < rest_.size() && rest_[at] >= '0' && rest_[at] <= '7'; ++digits, ++at) {
        code_point = code_point * 8 + static_cast<uint32_t>(rest_[at] - '0');
      }
    } else if (digits == 0) {
      value += '\\';  // an unknown escape is kept unchanged
      value += letter;
      return absl::OkStatus();
    } else {
      const absl::string_view hex = rest_.substr(at, digits);
      if (hex.size() != digits || !absl::SimpleHexAtoi(hex, &code_point))
        return Malformed("a bad escape in a string");
      at += digits;
    }
    if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
      return Malformed("an escape in a string is not a character");
    }
    AppendUtf8(code_point, value);
    return absl::OkStatus();
  }

  absl::string_view rest_;
  std::vector<JinjaToken> tokens_;
  int line_ = 1;
  bool at_line_start_ = true;
};

}  // namespace

bool IsPythonSpace(uint32_t code_point) {
  return IsWhiteSpace(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

absl::StatusOr<std::vector<JinjaToken>> TokenizeJinja(absl::string_view source) {
  if (const auto offset = FindInvalidUtf8(source)) {
    return absl::InvalidArgumentError(absl::StrCat("the template is not UTF-8 at byte ", *offset));
  }
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (absl::EndsWith(text, "\n")) text.pop_back();
  return Lexer(text).Run();
}

}  // namespace tandem
