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

// When an output ends, and what its text holds.
struct StopRules {
  // UTF-8. The output ends where the first of these is complete; empty ones never match.
  std::vector<std::string> stop;
  // End-of-text tokens included, unless they are to be ignored.
  absl::flat_hash_set<TokenId> stop_tokens;
  uint32_t max_tokens = 0;  // At least 1.
  // As long as there are fewer tokens, a stop string that is complete ends nothing; nor does it later. That
  // stop tokens do not come by then is the sampler's part.
  uint32_t min_tokens = 0;
  // Special tokens have text. A stop token never has.
  bool include_special_tokens = false;
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

// Turns committed tokens into what the client is sent, and decides where the output ends. Texts of pieces and
// end add up to the output: whole characters, without the stop string and what follows it. Where it ends is a
// function of the tokens' whole text, never of where token borders or pieces fall: of all occurrences of stop
// strings the first to be complete counts, and of those complete at the same byte the longest.
//
// Held back is only what may still become part of a stop string, less than the longest of them, and up to
// three bytes of a character. The work per byte of text is amortised O(stop strings). Not thread-safe.
class OutputAssembler {
 public:
  OutputAssembler(std::shared_ptr<const Tokenizer> tokenizer, StopRules rules);

  // Adds the next token. Not to be called once the output has ended.
  OutputPiece Push(TokenId token);

  // Takes in tokens whose pieces were delivered before, by another assembler with the same rules, and goes on
  // from there. Returns the end when they hold it, whose text was not delivered with them; tokens after it
  // are ignored.
  std::optional<OutputEnd> Replay(absl::Span<const TokenId> tokens);

  bool ended() const { return ended_; }
  // Tokens generated, one that ended the output included.
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
  // Appends text to held_ up to the first stop string that counts, which is then returned; held_ ends before
  // it.
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
