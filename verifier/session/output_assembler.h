#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// When an output ends, and what its text contains.
struct StopRules {
  // UTF-8. The output ends where the first of these is complete; empty ones never match.
  std::vector<std::string> stop;
  // Includes end-of-text tokens, unless they are ignored.
  absl::flat_hash_set<TokenId> stop_tokens;
  uint32_t max_tokens = 0;  // At least 1.
  // While there are fewer tokens than this, a complete stop string does not end the output, and it does not
  // do so later either. The sampler keeps stop tokens from being chosen before.
  uint32_t min_tokens = 0;
  // Whether special tokens have text.
  bool include_special_tokens = false;
  // Whether the text has the stop string that ends it, and a stop token its text. Otherwise neither is part
  // of the output.
  bool include_stop = false;
};

struct OutputEnd {
  enum class Reason { kStopToken, kStopString, kMaxTokens };
  Reason reason = Reason::kMaxTokens;
  std::string matched_stop;  // For kStopString.
  std::string text;          // The last of the output's text, held back until now.
};

struct OutputPiece {
  std::string text;  // What became certain; empty at the end, where all that is left is end->text.
  std::optional<OutputEnd> end;
};

// Turns committed tokens into text for the client, and decides where the output ends. The texts of all pieces
// and of the end add up to the output: whole characters, without what comes after the stop string, and
// without that unless it is asked for. The
// end depends only on the tokens' whole text, not on borders of tokens or pieces: the first stop string to be
// complete counts, and of several complete at the same byte, the longest.
//
// It holds back only text that may become part of a stop string, which is less than the longest of them, and
// up to three bytes of a character. The work per byte of text is amortised O(stop strings). Not thread-safe.
class OutputAssembler {
 public:
  OutputAssembler(std::shared_ptr<const Tokenizer> tokenizer, StopRules rules);

  // Adds the next token. Do not call it after the output has ended.
  OutputPiece Push(TokenId token);

  // Adds tokens whose pieces another assembler with the same rules has delivered, and continues after them.
  // Returns the end if they contain it, with its text, which was not delivered; ignores tokens after it.
  std::optional<OutputEnd> Replay(absl::Span<const TokenId> tokens);

  bool ended() const { return ended_; }
  // Number of generated tokens, including the one that ended the output.
  uint32_t num_tokens() const { return num_tokens_; }

 private:
  // Knuth, Morris and Pratt's search for one stop string in a stream.
  struct Matcher {
    std::string stop;
    std::vector<size_t> borders;  // [i]: the longest proper border of the first i + 1 bytes.
    size_t matched = 0;           // How many bytes at the end of the text are a prefix of `stop`.
  };

  static Matcher MakeMatcher(std::string stop);
  static void Advance(Matcher& matcher, char byte);
  // Appends text to held_. If a stop string that counts is complete, cuts held_ before it and returns it.
  std::optional<std::string> Scan(absl::string_view text);
  OutputPiece End(OutputEnd::Reason reason);

  StopRules rules_;
  StreamingDecoder decoder_;
  std::vector<Matcher> matchers_;
  std::string held_;  // Text that no piece has had.
  uint32_t num_tokens_ = 0;
  bool ended_ = false;
};

}  // namespace tandem
