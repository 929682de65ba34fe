#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/token.h"
#include "common/drafting/blended_source.h"

namespace tandem {

// The suffix automaton of a growing text (Blumer et al., 1985). Every substring leads to one state. The
// substrings of a state end at the same positions. A state's link leads to the state of its longest suffix
// that also ends elsewhere. Appending a token takes amortised constant time and adds at most two states
// and three edges.
//
// A state counts the occurrences of its substrings. A new token updates only the counts of its longest
// kMaxCounted suffixes; in texts with more nested suffixes, the counts of the shortest ones are too low.
class SuffixAutomaton {
 public:
  using StateId = uint32_t;
  static constexpr StateId kRoot = 0;
  static constexpr size_t kMaxCounted = 32;

  SuffixAutomaton() { Clear(); }

  void Clear();
  // `token` is at least 0.
  void Append(TokenId token);

  // The longest suffix of the text that occurred before: its state. kRoot if there is none.
  StateId LongestRepeatedSuffix() const { return last_ == kRoot ? kRoot : states_[last_].link; }
  // Length of the state's longest substring, and the state of its longest suffix in another state.
  uint32_t Length(StateId state) const { return states_[state].length; }
  StateId Link(StateId state) const { return states_[state].link; }

  std::optional<StateId> After(StateId state, TokenId token) const;
  // The kMaxContinuations most recently added continuations.
  std::vector<Continuation> Continuations(StateId state) const;

  size_t num_states() const { return states_.size(); }
  size_t num_edges() const { return edges_.size(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct State {
    uint32_t length = 0;
    StateId link = kRoot;
    uint32_t count = 0;
    uint32_t first_edge = kNone;
  };
  struct Edge {
    TokenId token = 0;
    StateId target = kRoot;
    uint32_t next = kNone;  // Of the same state.
  };
  static uint64_t Key(StateId state, TokenId token) {
    return uint64_t{state} << 32 | static_cast<uint32_t>(token);
  }
  StateId NewState(uint32_t length);
  void AddEdge(StateId state, TokenId token, StateId target);
  StateId Split(StateId state, TokenId token, StateId target);

  std::vector<State> states_;
  std::vector<Edge> edges_;
  absl::flat_hash_map<uint64_t, uint32_t> edge_of_;
  StateId last_ = kRoot;
};

// The index for BlendedSource that finds contexts of any length with a suffix automaton of the session's
// text.
class SuffixIndex {
 public:
  struct Options {
    uint32_t min_length = 1;
    // Tokens looked at; when there are more, the older half goes.
    uint32_t max_tokens = 32768;
  };
  struct Context {
    uint32_t match_length = 0;
    SuffixAutomaton::StateId state = SuffixAutomaton::kRoot;
  };

  explicit SuffixIndex(const Options& options) : options_(options) {}

  void Clear();
  void Append(TokenId token, bool is_output);
  std::vector<Context> Contexts() const;
  std::vector<Continuation> Continuations(const Context& context) const {
    return automaton_.Continuations(context.state);
  }
  std::optional<Context> After(const Context& context, TokenId token) const;

  const SuffixAutomaton& automaton() const { return automaton_; }

 private:
  Options options_;
  TokenIds tokens_;
  SuffixAutomaton automaton_;
};

}  // namespace tandem
