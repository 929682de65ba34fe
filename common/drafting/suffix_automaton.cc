#include "common/drafting/suffix_automaton.h"

#include <cassert>

namespace tandem {

void SuffixAutomaton::Clear() {
  states_.assign(1, State{});
  edges_.clear();
  edge_of_.clear();
  last_ = kRoot;
}

SuffixAutomaton::StateId SuffixAutomaton::NewState(uint32_t length) {
  states_.push_back({.length = length});
  return static_cast<StateId>(states_.size() - 1);
}

void SuffixAutomaton::AddEdge(StateId state, TokenId token, StateId target) {
  const auto edge = static_cast<uint32_t>(edges_.size());
  edges_.push_back({.token = token, .target = target, .next = states_[state].first_edge});
  states_[state].first_edge = edge;
  edge_of_.emplace(Key(state, token), edge);
}

std::optional<SuffixAutomaton::StateId> SuffixAutomaton::After(StateId state, TokenId token) const {
  const auto edge = edge_of_.find(Key(state, token));
  if (edge == edge_of_.end()) return std::nullopt;
  return edges_[edge->second].target;
}

// `target` has substrings longer than `state`'s plus `token`, which occur in fewer places now: the others get
// a state of their own, and the edges that led to them lead there.
SuffixAutomaton::StateId SuffixAutomaton::Split(StateId state, TokenId token, StateId target) {
  const StateId half = NewState(states_[state].length + 1);
  states_[half].link = states_[target].link;
  states_[half].count = states_[target].count;
  std::vector<uint32_t> copied;
  for (uint32_t edge = states_[target].first_edge; edge != kNone; edge = edges_[edge].next) {
    copied.push_back(edge);
  }
  for (size_t i = copied.size(); i-- > 0;) {
    AddEdge(half, edges_[copied[i]].token, edges_[copied[i]].target);
  }
  states_[target].link = half;
  while (true) {
    const auto edge = edge_of_.find(Key(state, token));
    if (edge == edge_of_.end() || edges_[edge->second].target != target) break;
    edges_[edge->second].target = half;
    if (state == kRoot) break;
    state = states_[state].link;
  }
  return half;
}

void SuffixAutomaton::Append(TokenId token) {
  assert(token >= 0);
  const StateId added = NewState(states_[last_].length + 1);
  StateId state = last_;
  std::optional<StateId> target;
  while (true) {
    target = After(state, token);
    if (target.has_value()) break;
    AddEdge(state, token, added);
    if (state == kRoot) break;
    state = states_[state].link;
  }
  if (!target.has_value()) {
    states_[added].link = kRoot;
  } else if (states_[*target].length == states_[state].length + 1) {
    states_[added].link = *target;
  } else {
    states_[added].link = Split(state, token, *target);
  }
  last_ = added;
  StateId suffix = added;
  for (size_t i = 0; i < kMaxCounted && suffix != kRoot; ++i, suffix = states_[suffix].link) {
    ++states_[suffix].count;
  }
}

std::vector<Continuation> SuffixAutomaton::Continuations(StateId state) const {
  std::vector<Continuation> continuations;
  for (uint32_t edge = states_[state].first_edge; edge != kNone && continuations.size() < kMaxContinuations;
       edge = edges_[edge].next) {
    continuations.push_back({.token = edges_[edge].token, .count = states_[edges_[edge].target].count});
  }
  return continuations;
}

void SuffixIndex::Clear() {
  tokens_.clear();
  automaton_.Clear();
}

void SuffixIndex::Append(TokenId token, bool /*is_output*/) {
  if (tokens_.size() == options_.max_tokens) {
    tokens_.erase(tokens_.begin(), tokens_.end() - options_.max_tokens / 2);
    automaton_.Clear();
    for (TokenId kept : tokens_) automaton_.Append(kept);
  }
  tokens_.push_back(token);
  automaton_.Append(token);
}

std::vector<SuffixIndex::Context> SuffixIndex::Contexts() const {
  std::vector<Context> contexts;
  SuffixAutomaton::StateId state = automaton_.LongestRepeatedSuffix();
  while (state != SuffixAutomaton::kRoot && contexts.size() < kMaxContexts &&
         automaton_.Length(state) >= options_.min_length) {
    contexts.push_back({.match_length = automaton_.Length(state), .state = state});
    state = automaton_.Link(state);
  }
  return contexts;
}

std::optional<SuffixIndex::Context> SuffixIndex::After(const Context& context, TokenId token) const {
  const std::optional<SuffixAutomaton::StateId> state = automaton_.After(context.state, token);
  if (!state.has_value()) return std::nullopt;
  return Context{.match_length = context.match_length + 1, .state = *state};
}

}  // namespace tandem
