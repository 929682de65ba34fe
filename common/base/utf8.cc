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

uint32_t TakeCodePoint(absl::string_view* text) {
  constexpr uint32_t kReplaced = 0xFFFD;
  const size_t length = CharacterLength(*text);
  const auto first = static_cast<uint8_t>(text->front());
  uint32_t code_point = length == 0 ? kReplaced : length == 1 ? first : first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    code_point = code_point << 6 | (static_cast<uint8_t>((*text)[i]) & 0x3Fu);
  }
  text->remove_prefix(length == 0 ? 1 : length);
  return code_point;
}

void AppendCodePoint(uint32_t code_point, std::string* text) {
  const auto add = [text](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return add(code_point);
  const int more = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  add((0xFF00u >> (more + 1) & 0xFFu) | code_point >> (6 * more));
  for (int i = more - 1; i >= 0; --i) add(0x80u | (code_point >> (6 * i) & 0x3Fu));
}

}  // namespace tandem
