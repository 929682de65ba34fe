#include "common/tokenizer/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/unicode/unicode_tables.h"

namespace tandem {
namespace {

// The second byte of a character is restricted by the first (Unicode standard, table 3-7).
struct LeadByte {
  size_t continuation_bytes;
  unsigned char second_low;
  unsigned char second_high;
};

LeadByte ClassifyLead(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Among characters that are not inert, the only composition that utf8proc makes and the Hugging Face library
// does not.
constexpr utf8proc_int32_t kNewerComposition = 0x11938;
constexpr uint32_t kNewerCompositionParts[] = {0x11935, 0x11930};

struct MarkedCodePoint {
  utf8proc_int32_t code_point;
  utf8proc_propval_t combining_class;
  bool inert;  // has no combining class and is in no composition
};

absl::Status DecomposeCodePoint(uint32_t code_point, utf8proc_option_t options,
                                std::vector<MarkedCodePoint>& out) {
  if (HasNoNormalForm(code_point)) {
    out.push_back({static_cast<utf8proc_int32_t>(code_point), 0, true});
    return absl::OkStatus();
  }
  constexpr int kMaxDecomposition = 64;  // the longest one of Unicode has 18 code points
  utf8proc_int32_t buffer[kMaxDecomposition];
  int boundary_class = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer,
                                                         kMaxDecomposition, options, &boundary_class);
  if (count < 0 || count > kMaxDecomposition) {
    return absl::InternalError(absl::StrCat("cannot decompose U+", absl::Hex(code_point)));
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    out.push_back({buffer[i], utf8proc_get_property(buffer[i])->combining_class, false});
  }
  return absl::OkStatus();
}

// The canonical ordering algorithm: marks between two starters are sorted by combining class, stably.
void OrderCombiningMarks(std::vector<MarkedCodePoint>& text) {
  auto it = text.begin();
  while (it != text.end()) {
    if (it->combining_class == 0) {
      ++it;
      continue;
    }
    auto end = std::find_if(it, text.end(), [](const MarkedCodePoint& m) { return m.combining_class == 0; });
    std::stable_sort(it, end, [](const MarkedCodePoint& a, const MarkedCodePoint& b) {
      return a.combining_class < b.combining_class;
    });
    it = end;
  }
}

// Appends the composition of the code points.
absl::Status ComposeAndClear(std::vector<utf8proc_int32_t>& code_points, std::string& out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  if (length < 0) return absl::InternalError("Unicode composition failed");
  code_points.resize(static_cast<size_t>(length));
  for (utf8proc_int32_t code_point : code_points) {
    if (code_point == kNewerComposition) {
      AppendUtf8(kNewerCompositionParts[0], out);
      AppendUtf8(kNewerCompositionParts[1], out);
    } else {
      AppendUtf8(static_cast<uint32_t>(code_point), out);
    }
  }
  code_points.clear();
  return absl::OkStatus();
}

}  // namespace

Utf8Unit ReadUtf8(absl::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (lead < 0x80) return {Utf8Unit::Kind::kCharacter, 1, lead};
  const LeadByte form = ClassifyLead(lead);
  if (form.continuation_bytes == 0) return {Utf8Unit::Kind::kInvalid, 1, 0};
  uint32_t code_point = lead & (0x3Fu >> form.continuation_bytes);
  for (size_t i = 1; i <= form.continuation_bytes; ++i) {
    if (i >= bytes.size()) return {Utf8Unit::Kind::kIncomplete, i, 0};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? form.second_low : 0x80;
    const unsigned char high = i == 1 ? form.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Unit::Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Utf8Unit::Kind::kCharacter, form.continuation_bytes + 1, code_point};
}

std::optional<size_t> FindInvalidUtf8(absl::string_view bytes) {
  size_t offset = 0;
  while (offset < bytes.size()) {
    const Utf8Unit unit = ReadUtf8(bytes.substr(offset));
    if (unit.kind != Utf8Unit::Kind::kCharacter) return offset;
    offset += unit.length;
  }
  return std::nullopt;
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    out.push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    out.push_back(static_cast<char>(0x80 | ((code_point >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  }
}

bool IsWhiteSpace(uint32_t code_point) {
  if (code_point >= 0x09 && code_point <= 0x0D) return true;
  if (code_point < 0x80) return code_point == 0x20;
  if (code_point == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool IsNumeric(uint32_t code_point) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO || IsNewerNumeric(code_point);
}

bool IsWordCharacter(uint32_t code_point) {
  if (code_point == 0x200C || code_point == 0x200D) return true;  // Join_Control
  // Symbols with the property Alphabetic: circled, squared and negative letters.
  if ((code_point >= 0x24B6 && code_point <= 0x24E9) || (code_point >= 0x1F130 && code_point <= 0x1F149) ||
      (code_point >= 0x1F150 && code_point <= 0x1F169) || (code_point >= 0x1F170 && code_point <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return IsNewerWordCharacter(code_point);
  }
}

absl::StatusOr<std::string> NormalizeUnicode(absl::string_view text, NormalizationForm form) {
  if (IsAscii(text)) return std::string(text);
  const bool compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const bool compose = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<MarkedCodePoint> decomposed;
  decomposed.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    if (unit.kind != Utf8Unit::Kind::kCharacter) {
      return absl::InvalidArgumentError("Unicode normalization needs well-formed UTF-8");
    }
    text.remove_prefix(unit.length);
    if (absl::Status status = DecomposeCodePoint(unit.code_point, options, decomposed); !status.ok()) {
      return status;
    }
  }
  OrderCombiningMarks(decomposed);
  std::string out;
  out.reserve(decomposed.size());
  if (!compose) {
    for (const MarkedCodePoint& marked : decomposed)
      AppendUtf8(static_cast<uint32_t>(marked.code_point), out);
    return out;
  }
  // Nothing is composed across an inert character.
  std::vector<utf8proc_int32_t> stretch;
  for (const MarkedCodePoint& marked : decomposed) {
    if (!marked.inert) {
      stretch.push_back(marked.code_point);
      continue;
    }
    TANDEM_RETURN_IF_ERROR(ComposeAndClear(stretch, out));
    AppendUtf8(static_cast<uint32_t>(marked.code_point), out);
  }
  TANDEM_RETURN_IF_ERROR(ComposeAndClear(stretch, out));
  return out;
}

std::string LowercaseUnicode(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    if (unit.kind != Utf8Unit::Kind::kCharacter) {
      out.append(text.data(), unit.length);
    } else if (unit.code_point == 0x130) {
      out += "i\xCC\x87";  // the only character whose lower case is longer than one code point
    } else {
      const utf8proc_int32_t lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(unit.code_point));
      AppendUtf8(FindNewerLowercase(unit.code_point).value_or(static_cast<uint32_t>(lower)), out);
    }
    text.remove_prefix(unit.length);
  }
  return out;
}

}  // namespace tandem
