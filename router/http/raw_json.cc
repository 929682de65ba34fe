#include "router/http/raw_json.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem::router {
namespace {

// Where a string that begins at `at` ends: behind its closing quote.
size_t EndOfString(absl::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
  return at < text.size() ? at + 1 : text.size();
}

// Walks over the members or elements of a value.
class Walk {
 public:
  // `bracket`: of the values that are walked over.
  Walk(absl::string_view text, char bracket) : rest_(text) {
    // A byte order mark, which a body may begin with.
    absl::ConsumePrefix(&rest_, "\xef\xbb\xbf");
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    if (!absl::ConsumePrefix(&rest_, absl::string_view(&bracket, 1))) rest_ = {};
  }

  // The next value, or, in front of its colon, name; empty at the end.
  absl::string_view Next() {
    while (!rest_.empty() && (absl::ascii_isspace(static_cast<unsigned char>(rest_[0])) || rest_[0] == ',' ||
                              rest_[0] == ':')) {
      rest_.remove_prefix(1);
    }
    const size_t end = EndOfValue();
    const absl::string_view value = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return value;
  }

 private:
  size_t EndOfValue() const {
    size_t depth = 0;
    size_t at = 0;
    while (at < rest_.size()) {
      const char c = rest_[at];
      if (c == '"') {
        at = EndOfString(rest_, at);
        if (depth == 0) return at;
        continue;
      }
      if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        // The end of what is walked over, or of a number or word in front of that.
        if (depth == 0) return at;
        if (--depth == 0) return at + 1;
      } else if (depth == 0 && (c == ',' || absl::ascii_isspace(static_cast<unsigned char>(c)))) {
        return at;
      }
      ++at;
    }
    return at;
  }

  absl::string_view rest_;
};

bool IsName(absl::string_view quoted, absl::string_view name) {
  if (quoted.find('\\') == absl::string_view::npos) return quoted.substr(1, quoted.size() - 2) == name;
  const auto text = nlohmann::json::parse(quoted.begin(), quoted.end(), nullptr, /*allow_exceptions=*/false);
  return text.is_string() && text.get_ref<const std::string&>() == name;
}

}  // namespace

absl::string_view RawMember(absl::string_view object, absl::string_view name) {
  Walk walk(object, '{');
  for (;;) {
    const absl::string_view found = walk.Next();
    if (found.empty()) return {};
    const absl::string_view value = walk.Next();
    if (IsName(found, name)) return value;
  }
}

std::vector<absl::string_view> RawElements(absl::string_view list) {
  std::vector<absl::string_view> elements;
  Walk walk(list, '[');
  for (;;) {
    const absl::string_view value = walk.Next();
    if (value.empty()) return elements;
    elements.push_back(value);
  }
}

std::string CompactJson(absl::string_view value) {
  std::string compact;
  for (size_t at = 0; at < value.size();) {
    if (absl::ascii_isspace(static_cast<unsigned char>(value[at]))) {
      ++at;
      continue;
    }
    const size_t end = value[at] == '"' ? EndOfString(value, at) : at + 1;
    absl::StrAppend(&compact, value.substr(at, end - at));
    at = end;
  }
  return compact;
}

}  // namespace tandem::router
