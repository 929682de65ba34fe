#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

class Tokenizer;

// Turns tokens into text as they come. What is returned is always whole characters; up to three bytes of an
// unfinished one are kept back. The pieces, with Flush at the end, add up to exactly Tokenizer::Decode of all
// tokens; but of a run of SentencePiece byte tokens that are not all characters Decode keeps no byte, and
// here those that are characters have been given out before that shows. Copying is cheap, and a copy goes on
// from the same point. Not to be shared between threads.
class StreamingDecoder {
 public:
  // With `skip_special` special tokens add no text. A text that is a `continuation` follows one that came
  // before it, as an output follows its prompt: what a tokenizer drops at the start of a text, such as the
  // blank that SentencePiece puts in front, is then part of it, and the pieces add up to the end of the whole
  // text's decoding.
  StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special, bool continuation = false);

  // Adds tokens and returns the text that became complete, which may be empty. Ids without a token add
  // nothing.
  std::string Push(TokenId token);
  std::string Push(absl::Span<const TokenId> tokens);

  // Ends the text: returns U+FFFD when it ends within a character. The decoder is then as new.
  std::string Flush();

  // How many bytes are kept back: 0 to 3.
  size_t num_pending_bytes() const { return pending_.size(); }

 private:
  void AppendBytes(absl::string_view bytes, std::string& out);
  void Restart();
  void StripLeading(std::string& text);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  bool continuation_;
  bool is_first_;
  int leading_strips_left_;
  std::string pending_;  // the beginning of a character
};

}  // namespace tandem
