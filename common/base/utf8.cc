#include "common/base/utf8.h"

#include <cstdint>

namespace tandem {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// The length in bytes of the character that `text` begins with; 0 if it begins with none.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  // The second byte's range tells overlong forms, surrogates and what lies above U+10FFFF.
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

}  // namespace

std::string CleanUtf8(absl::string_view text, size_t max_bytes) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const absl::string_view next = length == 0 ? kReplacement : text.substr(0, length);
    if (next.size() > max_bytes - clean.size()) break;
    clean.append(next.data(), next.size());
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return clean;
}

}  // namespace tandem
