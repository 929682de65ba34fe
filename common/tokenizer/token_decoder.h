#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/text_pattern.h"

namespace tandem {

// The decoder of a tokenizer.json, compiled into the bytes that each token adds on its own, and a change of
// the beginning of the whole text. This split makes it possible to decode a stream; decoders that need more
// (such as stripping the end) are refused. Immutable.
class TokenDecoder {
 public:
  // Reads ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip or a Sequence of them.
  static absl::StatusOr<TokenDecoder> Parse(const JsonView& json);

  // The bytes that the token with this content adds to the text; `is_first` when no token stands before it.
  absl::StatusOr<std::string> Bytes(absl::string_view content, bool is_first) const;

  // Whether the token with this content is one byte, of which runs are decoded together.
  bool IsByteToken(absl::string_view content) const;

  // True when some token's bytes may depend on its being the first.
  bool depends_on_first() const { return depends_on_first_; }

  // The text loses up to `max_count` leading copies of this character.
  struct LeadingStrip {
    std::string character;
    int max_count = 0;
  };
  const LeadingStrip& leading_strip() const { return leading_strip_; }

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Metaspace {
    std::string replacement;
    bool drop_from_first;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  struct Strip {
    std::string character;
    int max_left;
    int max_right;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Metaspace, Replace, Strip>;

  absl::Status AddSteps(const JsonView& json);
  absl::Status AddStrip(const JsonView& json);
  absl::Status AddMetaspace(const JsonView& json);

  std::vector<Step> steps_;
  bool fused_ = false;  // steps read from here on see the whole text
  bool depends_on_first_ = false;
  LeadingStrip leading_strip_;
};

}  // namespace tandem
