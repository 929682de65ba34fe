#include "common/grammar/regex_text.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem {

std::string PlainRegex(absl::string_view pattern) {
  std::string plain;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (in_class && absl::ascii_ispunct(escaped)) {
        absl::StrAppend(&plain, "\\u", absl::Hex(static_cast<unsigned char>(escaped), absl::kZeroPad4));
      } else {
        absl::StrAppend(&plain, "\\", absl::string_view(&escaped, 1));
      }
    } else if (c == '.' && !in_class) {
      absl::StrAppend(&plain, R"([^\n\r\u2028\u2029])");
    } else {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      plain.push_back(c);
    }
  }
  return plain;
}

}  // namespace tandem
