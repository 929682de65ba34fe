#include "common/grammar/regex_text.h"

#include <cstddef>
#include <optional>

#include "absl/strings/ascii.h"
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
      if (in_class.has_value() && absl::ascii_ispunct(escaped)) {
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
