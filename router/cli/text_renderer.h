#pragma once

#include <iosfwd>

#include "absl/strings/string_view.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

// Writes a generation's text as it arrives. Not thread-safe; `out` outlives it.
class TextRenderer {
 public:
  struct Options {
    // Text of accepted draft tokens is green.
    bool color = false;
    // Replaces control characters, except line feeds and tabs, by U+FFFD, because models may write them and a
    // terminal would obey them.
    bool replace_controls = false;
    // The output is parsed: writes the target's content, and each call on a line of its own.
    bool parsed = false;
  };

  TextRenderer(std::ostream& out, const Options& options) : out_(out), options_(options) {}

  void Write(const v1::GenerateResponse& event);
  // Ends the last line, if it was begun.
  void EndLine();

  // Explains the colours, in these colours.
  static absl::string_view Legend();

 private:
  void WriteChunk(const v1::GenerationChunk& chunk);
  void WriteDeltas(const google::protobuf::RepeatedPtrField<v1::OutputDelta>& deltas);
  // `color` is empty for none.
  void WriteText(absl::string_view text, absl::string_view color);

  std::ostream& out_;
  const Options options_;
  bool line_begun_ = false;
  bool in_call_ = false;
};

}  // namespace tandem::cli
