#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/drafting/blended_source.h"

namespace tandem {

// The index for BlendedSource that does prompt lookup: it finds where the last n tokens of a session's
// text occurred before, for n from `max_n` down to `min_n` (vLLM's prompt_lookup_max and
// prompt_lookup_min).
class NgramIndex {
 public:
  struct Options {
    uint32_t min_n = 1;
    uint32_t max_n = 5;  // At most 16.
    // Tokens looked at; when there are more, the older half goes.
    uint32_t max_tokens = 32768;
  };
  struct Context {
    uint32_t match_length = 0;
    std::vector<uint32_t> next;  // Positions of the tokens that followed, most recent first.
  };

  explicit NgramIndex(const Options& options) : options_(options) { Clear(); }

  void Clear();
  void Append(TokenId token, bool is_output);
  std::vector<Context> Contexts() const;
  std::vector<Continuation> Continuations(const Context& context) const;
  std::optional<Context> After(const Context& context, TokenId token) const;

 private:
  struct Length {
    // Hash of an n-gram -> the position after its last occurrence.
    absl::flat_hash_map<uint64_t, uint32_t> last;
    // For each position, the one before it with the same hash; 0 for none.
    std::vector<uint32_t> previous;
  };
  void Index(TokenId token);

  Options options_;
  TokenIds tokens_;
  std::vector<Length> lengths_;  // For min_n, min_n + 1, ..., max_n.
};

}  // namespace tandem
