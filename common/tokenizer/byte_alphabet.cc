#include "common/tokenizer/byte_alphabet.h"

#include <array>

#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

constexpr uint32_t kFirstSubstitute = 0x100;
constexpr uint32_t kNumSubstitutes = 68;
constexpr int16_t kNoByte = -1;

struct Alphabet {
  std::array<uint16_t, 256> character_of_byte{};
  std::array<int16_t, kFirstSubstitute + kNumSubstitutes> byte_of_character{};
};

constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte_of_character) byte = kNoByte;
  uint32_t next = kFirstSubstitute;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t character = StandsForItself(byte) ? byte : next++;
    alphabet.character_of_byte[byte] = static_cast<uint16_t>(character);
    alphabet.byte_of_character[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendByteAlphabet(absl::string_view bytes, std::string& out) {
  for (char byte : bytes) AppendUtf8(kAlphabet.character_of_byte[static_cast<unsigned char>(byte)], out);
}

std::optional<std::string> BytesFromAlphabet(absl::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8(text);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return std::nullopt;
    if (unit.code_point >= kAlphabet.byte_of_character.size()) return std::nullopt;
    const int16_t byte = kAlphabet.byte_of_character[unit.code_point];
    if (byte == kNoByte) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(unit.length);
  }
  return bytes;
}

}  // namespace tandem
