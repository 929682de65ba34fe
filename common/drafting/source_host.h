#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/drafting/draft_source.h"
#include "common/drafting/learned_trie.h"
#include "common/drafting/match_acceptance.h"
#include "common/drafting/ngram_index.h"
#include "common/drafting/suffix_automaton.h"

namespace tandem {

// A kind of source that needs no weights, and its settings.
struct SourceSpec {
  enum class Kind { kNgram, kSuffix, kTrie };
  Kind kind = Kind::kNgram;
  NgramIndex::Options ngram;
  SuffixIndex::Options suffix;
  TrieIndex::Options trie;
  TrieStore::Options tries;
};

// Whether `text` names a source and not something else: its part before a colon is ngram, suffix or trie.
bool NamesSource(absl::string_view text);

// From KIND or KIND:KEY=NUMBER,...: InvalidArgument says which keys and numbers there are.
//   ngram   min, max (tokens that must match, at most 16), tokens (looked at)
//   suffix  min, tokens
//   trie    context, branch, nodes (of each tenant), tenants
absl::StatusOr<SourceSpec> ParseSourceSpec(absl::string_view text);

// State that the sessions of one source share: acceptance by match length, and the tenants' tries.
// Outlives the sources that it makes, and belongs to their thread.
class SourceHost {
 public:
  explicit SourceHost(const SourceSpec& spec) : spec_(spec), tries_(spec.tries) {}
  SourceHost(const SourceHost&) = delete;
  SourceHost& operator=(const SourceHost&) = delete;

  // `cache_salt` separates tenants: no source learns from another tenant's tokens, nor from those of another
  // vocabulary, which this one may not even have.
  std::unique_ptr<DraftSource> NewSession(uint64_t cache_salt, uint64_t vocabulary_fingerprint);
  // As NewSession, to find out what would have been drafted for known tokens. Reads the shared state and does
  // not change it, so that an output counts once.
  std::unique_ptr<DraftSource> NewReplay(uint64_t cache_salt, uint64_t vocabulary_fingerprint);
  // Whether sessions learn whole outputs from one another. A replay may then meet what it learned when the
  // output was made.
  bool remembers_outputs() const { return spec_.kind == SourceSpec::Kind::kTrie; }

 private:
  std::unique_ptr<DraftSource> Make(uint64_t cache_salt, uint64_t vocabulary_fingerprint, bool teaches);

  const SourceSpec spec_;
  MatchAcceptance acceptance_;
  TrieStore tries_;
};

}  // namespace tandem
