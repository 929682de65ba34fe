#define PCRE2_CODE_UNIT_WIDTH 8

#include "common/tokenizer/regex.h"

#include <pcre2.h>

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/unicode.h"

namespace tandem {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKibibytes = 256 * 1024;

// PCRE2's \s also takes U+180E, which is no white space since Unicode 6.3.
constexpr absl::string_view kWhiteSpaceMembers = "\\p{Z}\\x{09}-\\x{0D}\\x{85}";
// Oniguruma's \w is alphabetic characters (circled and squared letters among them), marks, decimal digits and
// connectors; PCRE2's takes all numbers, but no marks.
constexpr absl::string_view kWordMembers =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";

// Outside a character class, and only there, it also takes the superscripts and fractions of Latin-1.
constexpr absl::string_view kLoneWordMembers = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

// Rewrites Oniguruma's Ruby syntax into PCRE2's.
class PatternTranslator {
 public:
  explicit PatternTranslator(absl::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Translate() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        TANDEM_RETURN_IF_ERROR(TranslateEscape());
      } else if (in_class_) {
        TANDEM_RETURN_IF_ERROR(TranslateInsideClass());
      } else {
        TANDEM_RETURN_IF_ERROR(TranslateOutsideClass());
      }
    }
    return std::move(out_);
  }

 private:
  void Copy(size_t count) {
    out_.append(rest_.data(), count);
    rest_.remove_prefix(count);
  }

  static absl::Status Unsupported(absl::string_view what) {
    return absl::UnimplementedError(
        absl::StrCat("regular expression uses ", what, ", which is not supported"));
  }

  absl::Status TranslateEscape() {
    if (rest_.size() < 2) return absl::InvalidArgumentError("regular expression ends in a backslash");
    switch (rest_[1]) {
      case 's':
        return AddClass(kWhiteSpaceMembers, "", false);
      case 'S':
        return AddClass(kWhiteSpaceMembers, "", true);
      case 'w':
        return AddClass(kWordMembers, kLoneWordMembers, false);
      case 'W':
        return AddClass(kWordMembers, kLoneWordMembers, true);
      case 'h':
      case 'H':
        return Unsupported("\\h");
      case 'b':
      case 'B':
        return Unsupported("\\b");
      default: {
        // \p{L}, \x{41}: the braces are not an interval.
        const size_t close = rest_.size() > 2 && rest_[2] == '{' ? rest_.find('}') : 1;
        Copy(close == absl::string_view::npos ? 2 : close + 1);
        return absl::OkStatus();
      }
    }
  }

  // Replaces the escape at hand by the members it stands for; those in `lone` count outside a class only.
  absl::Status AddClass(absl::string_view members, absl::string_view lone, bool negated) {
    if (in_class_ && negated) return Unsupported("a negated class inside a character class");
    if (in_class_) {
      absl::StrAppend(&out_, members);
    } else {
      absl::StrAppend(&out_, negated ? "[^" : "[", members, lone, "]");
    }
    rest_.remove_prefix(2);
    return absl::OkStatus();
  }

  absl::Status TranslateInsideClass() {
    if (absl::StartsWith(rest_, "&&")) return Unsupported("an intersection of character classes");
    if (rest_[0] == '[') return Unsupported("nested character classes");
    if (rest_[0] == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status TranslateOutsideClass() {
    if (rest_[0] == '[') {
      in_class_ = true;
      Copy(absl::StartsWith(rest_, "[^") ? 2 : 1);
      if (absl::StartsWith(rest_, "]")) return Unsupported("']' as the first member of a character class");
      return absl::OkStatus();
    }
    if (absl::StartsWith(rest_, "}+")) return Unsupported("'+' after an interval");
    if (absl::StartsWith(rest_, "(?")) {
      // Inline options: Ruby's m is "dot matches newline", PCRE2's is "^ and $ match at every line".
      for (size_t i = 2; i < rest_.size() && rest_[i] != ')' && rest_[i] != ':'; ++i) {
        if (rest_[i] == 'm') return Unsupported("the option m");
        if (rest_[i] != 'i' && rest_[i] != 'x' && rest_[i] != '-') break;
      }
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return absl::StrCat("PCRE2 error ", code);
  return reinterpret_cast<const char*>(buffer);
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

absl::StatusOr<Regex> Regex::Compile(absl::string_view oniguruma_pattern) {
  if (oniguruma_pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression is longer than ", kMaxPatternBytes, " bytes"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string pattern, PatternTranslator(oniguruma_pattern).Translate());
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  // In Ruby ^ and $ match at every line.
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                   &error_offset, nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression '", oniguruma_pattern,
                                                   "': ", ErrorText(error), " near offset ", error_offset));
  }
  // Without just-in-time compilation (an unusual processor) PCRE2 interprets.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); }));
}

absl::Status Regex::ForEachMatch(absl::string_view text,
                                 absl::FunctionRef<absl::Status(size_t, size_t)> on_match) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) return absl::ResourceExhaustedError("out of memory for PCRE2");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKibibytes);

  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t position = 0;
  size_t last_end = static_cast<size_t>(-1);
  while (position <= text.size()) {
    int result =
        pcre2_match(code, subject, text.size(), position, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter keeps its backtracking points on the heap.
      result = pcre2_match(code, subject, text.size(), position, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           data.get(), context.get());
    }
    if (result == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
    if (result < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("regular expression failed at byte ", position, ": ", ErrorText(result)));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
    if (end < begin || begin < position) {
      return absl::InvalidArgumentError("regular expression moves the start of its match with \\K");
    }
    if (begin == end) {
      if (begin != last_end) TANDEM_RETURN_IF_ERROR(on_match(begin, end));
      last_end = begin;
      if (end >= text.size()) return absl::OkStatus();
      position = end + ReadUtf8(text.substr(end)).length;
      continue;
    }
    TANDEM_RETURN_IF_ERROR(on_match(begin, end));
    position = end;
    last_end = end;
  }
  return absl::OkStatus();
}

}  // namespace tandem
