#include "common/grammar/schema/language.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

constexpr uint32_t kFirstSurrogate = 0xd800;
constexpr uint32_t kLastSurrogate = 0xdfff;
constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

absl::Status TooManyStates() {
  return absl::ResourceExhaustedError("too large: its automaton has more than 4096 states");
}

uint32_t Follow(const Language::State& state, uint32_t code_point) {
  const auto arc = std::lower_bound(state.arcs.begin(), state.arcs.end(), code_point,
                                    [](const Language::Arc& one, uint32_t c) { return one.range.last < c; });
  return arc != state.arcs.end() && arc->range.first <= code_point ? arc->target : kNowhere;
}

// Arcs to one target that touch become one.
void Join(std::vector<Language::Arc>* arcs) {
  size_t kept = 0;
  for (const Language::Arc& arc : *arcs) {
    if (kept > 0 && (*arcs)[kept - 1].target == arc.target &&
        (*arcs)[kept - 1].range.last + 1 == arc.range.first) {
      (*arcs)[kept - 1].range.last = arc.range.last;
    } else {
      (*arcs)[kept++] = arc;
    }
  }
  arcs->resize(kept);
}

// For every state whether some text leads from it to an accepting one.
std::vector<bool> LeadToText(const std::vector<Language::State>& states) {
  std::vector<std::vector<uint32_t>> before(states.size());
  std::vector<uint32_t> open;
  std::vector<bool> lead(states.size(), false);
  for (uint32_t i = 0; i < states.size(); ++i) {
    for (const Language::Arc& arc : states[i].arcs) before[arc.target].push_back(i);
    if (states[i].accepts) {
      lead[i] = true;
      open.push_back(i);
    }
  }
  while (!open.empty()) {
    const uint32_t state = open.back();
    open.pop_back();
    for (const uint32_t one : before[state]) {
      if (lead[one]) continue;
      lead[one] = true;
      open.push_back(one);
    }
  }
  return lead;
}

// Keeps what begins at state 0 and leads to a text.
std::vector<Language::State> Trim(const std::vector<Language::State>& states) {
  const std::vector<bool> lead = LeadToText(states);
  std::vector<Language::State> kept(1);
  if (!lead[0]) return kept;
  std::vector<uint32_t> new_index(states.size(), kNowhere);
  std::vector<uint32_t> order = {0};
  new_index[0] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    Language::State state{.accepts = states[order[i]].accepts, .arcs = {}};
    for (Language::Arc arc : states[order[i]].arcs) {
      if (!lead[arc.target]) continue;
      if (new_index[arc.target] == kNowhere) {
        new_index[arc.target] = static_cast<uint32_t>(order.size());
        order.push_back(arc.target);
      }
      arc.target = new_index[arc.target];
      state.arcs.push_back(arc);
    }
    Join(&state.arcs);
    if (kept.size() <= i) kept.emplace_back();
    kept[i] = std::move(state);
  }
  return kept;
}

// Orders states by their class and their arcs.
struct StepsLess {
  using Steps = std::pair<uint32_t, std::vector<Language::Arc>>;

  bool operator()(const Steps& left, const Steps& right) const {
    if (left.first != right.first) return left.first < right.first;
    return std::lexicographical_compare(left.second.begin(), left.second.end(), right.second.begin(),
                                        right.second.end(),
                                        [](const Language::Arc& a, const Language::Arc& b) {
                                          return std::tie(a.range.first, a.range.last, a.target) <
                                                 std::tie(b.range.first, b.range.last, b.target);
                                        });
  }
};

// Moore's algorithm: classes of states are split until all states of a class step into the same classes.
absl::StatusOr<std::vector<Language::State>> Minimize(std::vector<Language::State> states,
                                                      WorkBudget* budget) {
  std::vector<uint32_t> classes(states.size());
  for (size_t i = 0; i < states.size(); ++i) classes[i] = states[i].accepts ? 1 : 0;
  for (size_t num_classes = 0;;) {
    std::map<std::pair<uint32_t, std::vector<Language::Arc>>, uint32_t, StepsLess> seen;
    std::vector<uint32_t> next(states.size());
    for (size_t i = 0; i < states.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(4 + 2 * states[i].arcs.size())));
      std::vector<Language::Arc> arcs = states[i].arcs;
      for (Language::Arc& arc : arcs) arc.target = classes[arc.target];
      Join(&arcs);
      next[i] = seen.emplace(std::pair(classes[i], std::move(arcs)), static_cast<uint32_t>(seen.size()))
                    .first->second;
    }
    classes = std::move(next);
    if (seen.size() == num_classes) break;
    num_classes = seen.size();
  }
  // One state for each class; that of state 0 stays first, because classes are numbered as states come.
  std::vector<Language::State> merged;
  for (size_t i = 0; i < states.size(); ++i) {
    if (classes[i] < merged.size()) continue;
    merged.push_back(states[i]);
    for (Language::Arc& arc : merged.back().arcs) arc.target = classes[arc.target];
    Join(&merged.back().arcs);
  }
  return merged;
}

}  // namespace

CodeRanges Normalized(CodeRanges ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& left, const CodeRange& right) { return left.first < right.first; });
  CodeRanges merged;
  const auto add = [&](uint32_t first, uint32_t last) {
    last = std::min(last, kLastCodePoint);
    if (first > last) return;
    if (!merged.empty() && merged.back().last + 1 >= first) {
      merged.back().last = std::max(merged.back().last, last);
    } else {
      merged.push_back({first, last});
    }
  };
  for (const CodeRange& range : ranges) {
    add(range.first, std::min(range.last, kFirstSurrogate - 1));
    add(std::max(range.first, kLastSurrogate + 1), range.last);
  }
  return merged;
}

CodeRanges Complement(const CodeRanges& ranges) {
  CodeRanges rest;
  uint32_t next = 0;
  for (const CodeRange& range : ranges) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return Normalized(std::move(rest));
}

CodeRanges Intersection(const CodeRanges& left, const CodeRanges& right) {
  CodeRanges both;
  for (size_t i = 0, j = 0; i < left.size() && j < right.size();) {
    const uint32_t first = std::max(left[i].first, right[j].first);
    const uint32_t last = std::min(left[i].last, right[j].last);
    if (first <= last) both.push_back({first, last});
    (left[i].last < right[j].last ? i : j) += 1;
  }
  return both;
}

const CodeRanges& AllCodePoints() {
  static const CodeRanges& all = *new CodeRanges(Normalized({{0, kLastCodePoint}}));
  return all;
}

Language Language::All() {
  Language all;
  all.states_[0].accepts = true;
  for (const CodeRange& range : AllCodePoints()) all.states_[0].arcs.push_back({range, 0});
  return all;
}

bool Language::IsAll() const {
  // Every arc of an only state leads back to it.
  CodeRanges ranges;
  for (const Arc& arc : states_[0].arcs) ranges.push_back(arc.range);
  return states_.size() == 1 && states_[0].accepts && ranges == AllCodePoints();
}

absl::StatusOr<Language> Language::FromStates(std::vector<State> states, WorkBudget* budget) {
  for (const State& state : states) {
    TANDEM_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(4 + 4 * state.arcs.size())));
  }
  Language language;
  TANDEM_ASSIGN_OR_RETURN(language.states_, Minimize(Trim(states), budget));
  if (language.states_.size() > kMostStates) return TooManyStates();
  return language;
}

absl::StatusOr<Language> Language::Texts(const std::vector<std::string>& texts, WorkBudget* budget) {
  std::vector<std::map<uint32_t, uint32_t>> trie(1);
  std::vector<bool> accepts(1, false);
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (absl::string_view rest = text; !rest.empty();) {
      TANDEM_RETURN_IF_ERROR(budget->Spend(8));
      const uint32_t code_point = TakeCodePoint(&rest);
      const auto [next, added] = trie[at].emplace(code_point, static_cast<uint32_t>(trie.size()));
      at = next->second;
      if (added) {
        trie.emplace_back();
        accepts.push_back(false);
      }
    }
    accepts[at] = true;
  }
  std::vector<State> states(trie.size());
  for (size_t i = 0; i < trie.size(); ++i) {
    states[i].accepts = accepts[i];
    for (const auto& [code_point, target] : trie[i]) {
      states[i].arcs.push_back({{code_point, code_point}, target});
    }
  }
  return FromStates(std::move(states), budget);
}

absl::StatusOr<Language> Language::AtLeast(const std::vector<std::string>& texts, size_t most_states,
                                           WorkBudget* budget) {
  // The nodes of their trie, level by level, until there are too many.
  struct Node {
    State state;
    std::vector<absl::string_view> rest;  // Of the texts that lead here.
  };
  std::vector<Node> nodes(1);
  nodes[0].rest.assign(texts.begin(), texts.end());
  size_t level = 0;
  for (size_t end = 1; level < end; level = std::exchange(end, nodes.size())) {
    std::vector<Node> next;
    std::vector<std::map<uint32_t, uint32_t>> children(end - level);
    for (size_t i = level; i < end; ++i) {
      for (absl::string_view text : nodes[i].rest) {
        TANDEM_RETURN_IF_ERROR(budget->Spend(8));
        if (text.empty()) {
          nodes[i].state.accepts = true;
          continue;
        }
        const auto [child, added] = children[i - level].emplace(
            TakeCodePoint(&text), static_cast<uint32_t>(nodes.size() + next.size()));
        if (added) next.emplace_back();
        next[child->second - nodes.size()].rest.push_back(text);
      }
    }
    if (level > 0 && nodes.size() + next.size() > most_states) break;
    for (size_t i = level; i < end; ++i) {
      for (const auto& [code_point, child] : children[i - level]) {
        nodes[i].state.arcs.push_back({{code_point, code_point}, child});
      }
    }
    std::move(next.begin(), next.end(), std::back_inserter(nodes));
  }
  // Those of the last level have lost their children: behind them is everything.
  const auto all = static_cast<uint32_t>(nodes.size());
  std::vector<State> states;
  for (size_t i = 0; i < nodes.size(); ++i) {
    states.push_back(std::move(nodes[i].state));
    const bool cut = i >= level && std::any_of(nodes[i].rest.begin(), nodes[i].rest.end(),
                                               [](absl::string_view rest) { return !rest.empty(); });
    if (!cut) continue;
    states.back().accepts = true;
    for (const CodeRange& range : AllCodePoints()) states.back().arcs.push_back({range, all});
  }
  states.push_back(All().states_[0]);
  for (Arc& arc : states.back().arcs) arc.target = all;
  return FromStates(std::move(states), budget);
}

absl::StatusOr<Language> Language::Runs(const CodeRanges& characters, size_t least, size_t most,
                                        WorkBudget* budget) {
  const size_t last = most != kNoLimit ? most : least;
  if (last >= kMostStates) return TooManyStates();
  std::vector<State> states(last + 1);
  for (size_t i = 0; i <= last; ++i) {
    states[i].accepts = i >= least;
    if (i == last && most != kNoLimit) break;
    for (const CodeRange& range : characters) {
      states[i].arcs.push_back({range, static_cast<uint32_t>(std::min(i + 1, last))});
    }
  }
  return FromStates(std::move(states), budget);
}

std::pair<size_t, size_t> Language::Lengths() const {
  size_t shortest = kNoLimit;
  std::vector<bool> now(states_.size(), false);
  now[0] = true;
  // After as many steps as there are states a walk has been in a circle, and may stay there as long as it
  // likes.
  for (size_t length = 0; length <= states_.size(); ++length) {
    std::vector<bool> next(states_.size(), false);
    bool any = false;
    for (size_t i = 0; i < states_.size(); ++i) {
      if (!now[i]) continue;
      if (states_[i].accepts) shortest = std::min(shortest, length);
      for (const Arc& arc : states_[i].arcs) any = next[arc.target] = true;
    }
    if (!any) return {shortest, length};
    now = std::move(next);
  }
  return {shortest, kNoLimit};
}

template <typename Rule>
absl::StatusOr<Language> Language::Combine(const Language& left, const Language& right, WorkBudget* budget,
                                           Rule accepts) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known = {{{0, 0}, 0}};
  std::vector<std::pair<uint32_t, uint32_t>> open = {{0, 0}};
  std::vector<State> states;
  static const State none;
  for (size_t i = 0; i < open.size(); ++i) {
    // Before what is the same becomes one.
    if (open.size() > 8 * kMostStates) return TooManyStates();
    const auto [a, b] = open[i];
    const State& one = a == kNowhere ? none : left.states_[a];
    const State& two = b == kNowhere ? none : right.states_[b];
    State& state = states.emplace_back();
    state.accepts = accepts(one.accepts, two.accepts);
    std::vector<uint32_t> borders;
    for (const State* part : {&one, &two}) {
      for (const Arc& arc : part->arcs) {
        borders.push_back(arc.range.first);
        borders.push_back(arc.range.last + 1);
      }
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    TANDEM_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(10 + 10 * borders.size())));
    for (size_t k = 0; k + 1 < borders.size(); ++k) {
      const std::pair<uint32_t, uint32_t> next(Follow(one, borders[k]), Follow(two, borders[k]));
      if (next.first == kNowhere && next.second == kNowhere) continue;
      // Where one of them leads nowhere, the other one alone may lead to nothing.
      if (next.first == kNowhere && !accepts(false, true)) continue;
      if (next.second == kNowhere && !accepts(true, false)) continue;
      const auto [position, added] = known.emplace(next, static_cast<uint32_t>(open.size()));
      if (added) open.push_back(next);
      state.arcs.push_back({{borders[k], borders[k + 1] - 1}, position->second});
    }
    Join(&state.arcs);
  }
  return FromStates(std::move(states), budget);
}

absl::StatusOr<Language> Language::Intersect(const Language& left, const Language& right,
                                             WorkBudget* budget) {
  return Combine(left, right, budget, [](bool one, bool two) { return one && two; });
}
absl::StatusOr<Language> Language::Unite(const Language& left, const Language& right, WorkBudget* budget) {
  return Combine(left, right, budget, [](bool one, bool two) { return one || two; });
}
absl::StatusOr<Language> Language::Subtract(const Language& left, const Language& right, WorkBudget* budget) {
  return Combine(left, right, budget, [](bool one, bool two) { return one && !two; });
}

Language Language::Prefixed(uint32_t first, const Language& rest) {
  Language language;
  if (rest.IsEmpty()) return language;
  language.states_[0].arcs = {{{first, first}, 1}};
  for (State state : rest.states_) {
    for (Arc& arc : state.arcs) ++arc.target;
    language.states_.push_back(std::move(state));
  }
  return language;
}

bool Language::Accepts(absl::string_view text) const {
  uint32_t at = 0;
  while (!text.empty()) {
    at = Follow(states_[at], TakeCodePoint(&text));
    if (at == kNowhere) return false;
  }
  return states_[at].accepts;
}

std::optional<std::vector<std::string>> Language::TextsUpTo(size_t most) const {
  std::vector<std::string> texts;
  std::vector<std::pair<std::string, uint32_t>> prefixes = {{"", 0}};
  // Every prefix leads to a text, so there are never more of one length than texts. One with as many code
  // points as there are states has been at some state twice: there is no end of texts.
  for (size_t length = 0; !prefixes.empty(); ++length) {
    if (length > states_.size()) return std::nullopt;
    std::vector<std::pair<std::string, uint32_t>> longer;
    for (const auto& [prefix, at] : prefixes) {
      if (states_[at].accepts) texts.push_back(prefix);
      for (const Arc& arc : states_[at].arcs) {
        for (uint32_t c = arc.range.first; c <= arc.range.last; ++c) {
          longer.emplace_back(prefix, arc.target);
          AppendCodePoint(c, &longer.back().first);
          if (longer.size() > most) return std::nullopt;
        }
      }
    }
    if (texts.size() > most) return std::nullopt;
    prefixes = std::move(longer);
    if (IsEmpty()) break;
  }
  return texts;
}

Nfa::Set Nfa::Closure(Set states, bool at_begin, bool at_end, WorkBudget* budget) const {
  std::vector<bool> in(states_.size(), false);
  for (const size_t state : states) in[state] = true;
  for (size_t i = 0; i < states.size(); ++i) {
    for (const auto& [to, where] : states_[states[i]].empty) {
      const bool may = where == Where::kAnywhere || (where == Where::kAtBegin && at_begin) ||
                       (where == Where::kAtEnd && at_end);
      if (!may || in[to]) continue;
      in[to] = true;
      states.push_back(to);
    }
  }
  budget->Spend(static_cast<int64_t>(states_.size() / 16 + 4 * states.size())).IgnoreError();
  std::sort(states.begin(), states.end());
  return states;
}

absl::StatusOr<Language> Nfa::ToLanguage(size_t begin, size_t end, WorkBudget* budget) const {
  const auto accepts = [&](const Set& states, bool at_begin) {
    const Set closed = Closure(states, at_begin, true, budget);
    return std::binary_search(closed.begin(), closed.end(), end);
  };
  std::map<Set, uint32_t> known;
  // The first one is a state of its own: only there is the text's beginning.
  std::vector<Set> open = {Closure({begin}, true, false, budget)};
  std::vector<Language::State> states;
  for (size_t i = 0; i < open.size(); ++i) {
    if (open.size() > 2 * Language::kMostStates) return TooManyStates();
    TANDEM_RETURN_IF_ERROR(budget->Spend(1));
    const Set from = open[i];
    Language::State state{.accepts = accepts(from, i == 0), .arcs = {}};
    // (code point, where ranges begin or end, target): a sweep over the ranges of all steps.
    std::vector<std::tuple<uint32_t, bool, size_t>> borders;
    for (const size_t one : from) {
      for (const Step& step : states_[one].steps) {
        TANDEM_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(8 * step.ranges->size())));
        for (const CodeRange& range : *step.ranges) {
          borders.emplace_back(range.first, true, step.to);
          borders.emplace_back(range.last + 1, false, step.to);
        }
      }
    }
    std::sort(borders.begin(), borders.end());
    std::map<size_t, size_t> active;  // Targets, and how many ranges lead there.
    for (size_t k = 0; k < borders.size();) {
      const uint32_t at = std::get<0>(borders[k]);
      for (; k < borders.size() && std::get<0>(borders[k]) == at; ++k) {
        const auto& [_, begins, to] = borders[k];
        if (begins) {
          ++active[to];
        } else if (--active[to] == 0) {
          active.erase(to);
        }
      }
      if (active.empty()) continue;
      Set targets;
      for (const auto& [to, count] : active) targets.push_back(to);
      TANDEM_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(8 * targets.size())));
      Set closed = Closure(std::move(targets), false, false, budget);
      const auto [position, added] = known.emplace(closed, static_cast<uint32_t>(open.size()));
      if (added) open.push_back(std::move(closed));
      state.arcs.push_back({{at, std::get<0>(borders[k]) - 1}, position->second});
    }
    Join(&state.arcs);
    states.push_back(std::move(state));
  }
  return Language::FromStates(std::move(states), budget);
}

}  // namespace tandem
