#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {

// Code points from first to last.
struct CodeRange {
  uint32_t first = 0;
  uint32_t last = 0;

  friend auto operator<=>(const CodeRange&, const CodeRange&) = default;
};
// Ascending, without overlaps and gaps of zero width.
using CodeRanges = std::vector<CodeRange>;

inline constexpr uint32_t kLastCodePoint = 0x10ffff;
inline constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// In the form that CodeRanges have. Surrogates, which no text has, fall out.
CodeRanges Normalized(CodeRanges ranges);
// All other code points.
CodeRanges Complement(const CodeRanges& ranges);
CodeRanges Intersection(const CodeRanges& left, const CodeRanges& right);
const CodeRanges& AllCodePoints();

// A set of texts, as a deterministic automaton over code points. Immutable.
class Language {
 public:
  struct Arc {
    CodeRange range;
    uint32_t target = 0;

    friend bool operator==(const Arc&, const Arc&) = default;
  };
  struct State {
    bool accepts = false;
    std::vector<Arc> arcs;  // Ascending, disjoint. Code points without an arc lead nowhere.
  };

  // No text.
  Language() : states_(1) {}
  static Language All();
  // Exactly these texts, in UTF-8.
  static absl::StatusOr<Language> Texts(const std::vector<std::string>& texts, WorkBudget* budget);
  // At least these texts, with at most `most_states` states: where they have too many letters, everything
  // that begins like one of them.
  static absl::StatusOr<Language> AtLeast(const std::vector<std::string>& texts, size_t most_states,
                                          WorkBudget* budget);
  // All texts of `least` to `most` code points out of `characters`.
  static absl::StatusOr<Language> Runs(const CodeRanges& characters, size_t least, size_t most,
                                       WorkBudget* budget);

  // Their states are all reachable and lead to a text, and no two of them are the same.
  static absl::StatusOr<Language> Intersect(const Language& left, const Language& right, WorkBudget* budget);
  static absl::StatusOr<Language> Unite(const Language& left, const Language& right, WorkBudget* budget);
  static absl::StatusOr<Language> Subtract(const Language& left, const Language& right, WorkBudget* budget);
  // The texts of `rest` with `first` in front.
  static Language Prefixed(uint32_t first, const Language& rest);

  // From states in any form: state 0 begins.
  static absl::StatusOr<Language> FromStates(std::vector<State> states, WorkBudget* budget);

  bool IsEmpty() const { return states_.size() == 1 && !states_[0].accepts && states_[0].arcs.empty(); }
  bool IsAll() const;
  bool Accepts(absl::string_view text) const;
  // All of its texts, shorter ones first, unless there are more than `most`.
  std::optional<std::vector<std::string>> TextsUpTo(size_t most) const;
  // The lengths of its shortest and longest text, in code points; kNoLimit if there is no longest one. Of a
  // language that is not empty.
  std::pair<size_t, size_t> Lengths() const;
  const std::vector<State>& states() const { return states_; }

  // Automata with more states are refused.
  static constexpr size_t kMostStates = 4096;

 private:
  template <typename Rule>
  static absl::StatusOr<Language> Combine(const Language& left, const Language& right, WorkBudget* budget,
                                          Rule accepts);

  std::vector<State> states_;
};

// A nondeterministic automaton, to build languages from.
class Nfa {
 public:
  // What must hold where an empty step is taken.
  enum class Where : uint8_t { kAnywhere, kAtBegin, kAtEnd };

  size_t AddState() {
    states_.emplace_back();
    return states_.size() - 1;
  }
  void AddStep(size_t from, const CodeRanges* ranges, size_t to) {
    states_[from].steps.push_back({ranges, to});
  }
  void AddEmpty(size_t from, size_t to, Where where = Where::kAnywhere) {
    states_[from].empty.emplace_back(to, where);
  }
  size_t size() const { return states_.size(); }

  // The texts that lead from `begin` to `end`.
  absl::StatusOr<Language> ToLanguage(size_t begin, size_t end, WorkBudget* budget) const;

 private:
  struct Step {
    const CodeRanges* ranges;  // Not owned.
    size_t to;
  };
  struct State {
    std::vector<Step> steps;
    std::vector<std::pair<size_t, Where>> empty;
  };
  using Set = std::vector<size_t>;

  Set Closure(Set states, bool at_begin, bool at_end, WorkBudget* budget) const;

  std::vector<State> states_;
};

}  // namespace tandem
