#include "router/cli/text_renderer.h"

#include <algorithm>
#include <ostream>

namespace tandem::cli {
namespace {

constexpr absl::string_view kDrafterColor = "\033[32m";
constexpr absl::string_view kLocalColor = "\033[36m";
constexpr absl::string_view kGrammarColor = "\033[35m";
constexpr absl::string_view kPredictionColor = "\033[34m";
constexpr absl::string_view kReasoningColor = "\033[2m";
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

// Empty for the target's own tokens. A server that does not say who guessed means the drafter.
absl::string_view ColorOf(const v1::TokenDetail& detail) {
  if (detail.source() != v1::TOKEN_SOURCE_ACCEPTED) return "";
  if (detail.draft_source() == v1::DRAFT_SOURCE_GRAMMAR) return kGrammarColor;
  if (detail.draft_source() == v1::DRAFT_SOURCE_PREDICTION) return kPredictionColor;
  return detail.draft_source() == v1::DRAFT_SOURCE_LOCAL ? kLocalColor : kDrafterColor;
}

void Put(std::ostream& out, absl::string_view text) {
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace

void TextRenderer::Write(const v1::GenerateResponse& event) {
  if (options_.parsed) {
    WriteDeltas(event.has_chunk() ? event.chunk().deltas() : event.finished().deltas());
  } else {
    if (event.has_chunk()) WriteChunk(event.chunk());
    if (event.has_finished()) WriteText(event.finished().text(), /*color=*/"");
  }
  out_.flush();
}

void TextRenderer::WriteDeltas(const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas) {
  for (const v1::OutputDelta& delta : deltas) {
    const bool in_call = delta.has_tool_call();
    if ((in_call && !delta.tool_call().name().empty()) || in_call != in_call_) EndLine();
    in_call_ = in_call;
    if (delta.has_content()) WriteText(delta.content(), /*color=*/"");
    if (delta.has_reasoning()) WriteText(delta.reasoning(), kReasoningColor);
    if (!in_call) continue;
    const v1::ToolCallDelta& call = delta.tool_call();
    if (!call.name().empty()) WriteText(call.name() + " ", kDrafterColor);
    WriteText(call.arguments(), /*color=*/"");
  }
}

void TextRenderer::EndLine() {
  if (line_begun_) out_ << '\n';
  line_begun_ = false;
  out_.flush();
}

absl::string_view TextRenderer::Legend() {
  return "\033[32mgreen\033[0m: guessed by the drafter and accepted; \033[36mcyan\033[0m: guessed by the "
         "verifier itself; \033[35mmagenta\033[0m: left no choice by the constraint; "
         "\033[34mblue\033[0m: predicted by the request; plain: chosen by the target\n";
}

void TextRenderer::WriteChunk(const v1::GenerationChunk& chunk) {
  const absl::string_view text = chunk.text();
  size_t written = 0;
  // Neighbouring tokens of one kind are written together. A server that leaves text_bytes out, or gets them
  // wrong, costs colours and no text.
  for (int i = 0; i < chunk.details_size() && written < text.size();) {
    const absl::string_view color = ColorOf(chunk.details(i));
    size_t end = written;
    for (; i < chunk.details_size() && ColorOf(chunk.details(i)) == color; ++i) {
      end = std::min(text.size(), end + size_t{chunk.details(i).text_bytes()});
    }
    while (end < text.size() && IsContinuation(text[end])) ++end;
    WriteText(text.substr(written, end - written), color);
    written = end;
  }
  WriteText(text.substr(written), /*color=*/"");
}

void TextRenderer::WriteText(absl::string_view text, absl::string_view color) {
  if (text.empty()) return;
  line_begun_ = text.back() != '\n';
  const bool colored = !color.empty() && options_.color;
  if (colored) Put(out_, color);
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
