#include "router/cli/text_renderer.h"

#include <algorithm>
#include <ostream>

namespace tandem::cli {
namespace {

constexpr absl::string_view kAcceptedColor = "\033[32m";
constexpr absl::string_view kPlainColor = "\033[0m";
constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Length of the control character at the front of `text`, 0 when there is none: C0 but line feed and tab,
// DEL, and C1, which is U+0080 to U+009F.
size_t ControlLength(absl::string_view text) {
  const unsigned char c = text[0];
  if (c == '\n' || c == '\t') return 0;
  if (c < 0x20 || c == 0x7F) return 1;
  if (c == 0xC2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xA0) return 2;
  return 0;
}

void Put(std::ostream& out, absl::string_view text) {
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace

void TextRenderer::Write(const v1::GenerateResponse& event) {
  if (event.has_chunk()) WriteChunk(event.chunk());
  if (event.has_finished()) WriteText(event.finished().text(), /*accepted=*/false);
  out_.flush();
}

void TextRenderer::EndLine() {
  if (line_begun_) out_ << '\n';
  line_begun_ = false;
  out_.flush();
}

absl::string_view TextRenderer::Legend() {
  return "\033[32mgreen\033[0m: drafted and accepted; plain: chosen by the target\n";
}

void TextRenderer::WriteChunk(const v1::GenerationChunk& chunk) {
  const absl::string_view text = chunk.text();
  size_t written = 0;
  // Neighbouring tokens of one kind are written together. A server that leaves text_bytes out, or gets them
  // wrong, costs colours and no text.
  for (int i = 0; i < chunk.details_size() && written < text.size();) {
    const bool accepted = chunk.details(i).source() == v1::TOKEN_SOURCE_ACCEPTED;
    size_t end = written;
    for (; i < chunk.details_size() && (chunk.details(i).source() == v1::TOKEN_SOURCE_ACCEPTED) == accepted;
         ++i) {
      end = std::min(text.size(), end + size_t{chunk.details(i).text_bytes()});
    }
    while (end < text.size() && IsContinuation(text[end])) ++end;
    WriteText(text.substr(written, end - written), accepted);
    written = end;
  }
  WriteText(text.substr(written), /*accepted=*/false);
}

void TextRenderer::WriteText(absl::string_view text, bool accepted) {
  if (text.empty()) return;
  line_begun_ = text.back() != '\n';
  const bool colored = accepted && options_.color;
  if (colored) Put(out_, kAcceptedColor);
  if (options_.replace_controls) {
    while (!text.empty()) {
      size_t plain = 0;
      while (plain < text.size() && ControlLength(text.substr(plain)) == 0) ++plain;
      Put(out_, text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) break;
      text.remove_prefix(ControlLength(text));
      Put(out_, kReplacement);
    }
  } else {
    Put(out_, text);
  }
  if (colored) Put(out_, kPlainColor);
}

}  // namespace tandem::cli
