#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

class Tokenizer;

// Turns tokens into text as they arrive. Returns only whole characters, and holds back up to three bytes of
// an unfinished one. The pieces, with Flush at the end, add up to exactly Tokenizer::Decode of all tokens,
// with one exception: of a run of SentencePiece byte tokens that is not wholly valid, Decode keeps no byte,
// while here the valid characters have already been returned. Copying is cheap, and a copy continues from the
// same point. Not thread-safe.
class StreamingDecoder {
 public:
  // With `skip_special` special tokens add no text. `continuation`: the text continues another one, as an
  // output continues its prompt. Then the decoder does not drop what a tokenizer drops at the start of a
  // text, such as SentencePiece's leading blank, and the pieces add up to the end of the whole text's
  // decoding.
  StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special, bool continuation = false);

  // Adds tokens and returns the text that became complete, which may be empty. Ids without a token add
  // nothing.
  std::string Push(TokenId token);
  std::string Push(absl::Span<const TokenId> tokens);

  // Ends the text: returns U+FFFD if it ends within a character. Resets the decoder.
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
