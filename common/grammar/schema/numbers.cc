#include "common/grammar/schema/numbers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/pattern.h"

namespace tandem {
namespace {

constexpr int64_t kMostDigits = 400;
// Remainders that an automaton tells apart.
constexpr uint64_t kMostRemainders = 10'000;

absl::StatusOr<Language> Matches(absl::string_view pattern, WorkBudget* budget) {
  TANDEM_ASSIGN_OR_RETURN(const Pattern parsed, Pattern::Parse(pattern));
  return parsed.ToLanguage(budget);
}

absl::StatusOr<Language> NotNegative(WorkBudget* budget) {
  return Matches("^(0|[1-9][0-9]*)(\\.[0-9]+)?$", budget);
}
absl::StatusOr<Language> Positive(WorkBudget* budget) {
  return Matches("^([1-9][0-9]*(\\.[0-9]+)?|0\\.0*[1-9][0-9]*)$", budget);
}

// A number that is not negative, cut at its point.
struct Digits {
  explicit Digits(absl::string_view number)
      : whole(number.substr(0, number.find('.'))),
        fraction(number.size() > whole.size() ? number.substr(whole.size() + 1) : "") {}

  absl::string_view whole;
  absl::string_view fraction;
};

enum Comparison : uint8_t { kLess, kEqual, kGreater };

Comparison Compare(char left, char right) {
  return left < right ? kLess : left > right ? kGreater : kEqual;
}

// Numbers that are at least `bound`, or greater; neither is negative. States follow the digits that were
// read: as many as the bound has before its point decide first, then which ones.
absl::StatusOr<Language> NotBelow(absl::string_view bound, bool exclusive, WorkBudget* budget) {
  const Digits digits(bound);
  const size_t num_whole = digits.whole.size();
  std::vector<Language::State> states;
  const auto add = [&](bool accepts) {
    states.push_back({.accepts = accepts, .arcs = {}});
    return static_cast<uint32_t>(states.size() - 1);
  };
  const auto step = [&](uint32_t from, char c, uint32_t to) {
    const auto code_point = static_cast<uint32_t>(c);
    states[from].arcs.push_back({{code_point, code_point}, to});
  };
  const auto step_by_any_digit = [&](uint32_t from, uint32_t to) {
    states[from].arcs.push_back({{'0', '9'}, to});
  };
  const uint32_t begin = add(false);
  // Behind the point where any digits will do.
  const uint32_t any_point = add(false);
  const uint32_t any = add(true);
  step_by_any_digit(any_point, any);
  step_by_any_digit(any, any);
  // Behind the digits before the point if these are the bound's: [i] with the first i of its fraction.
  std::vector<uint32_t> same;
  for (size_t i = 0; i <= digits.fraction.size(); ++i) same.push_back(add(false));
  const uint32_t equal = add(!exclusive);  // To the bound. Zeros change nothing.
  for (size_t i = 0; i < same.size(); ++i) {
    const bool at_end = i == digits.fraction.size();
    // With all of a fraction one is at `equal`.
    if (at_end && i > 0) break;
    const uint32_t next = i + 1 >= digits.fraction.size() ? equal : same[i + 1];
    const char wanted = at_end ? '0' : digits.fraction[i];
    step(same[i], wanted, next);
    for (char c = static_cast<char>(wanted + 1); c <= '9'; ++c) step(same[i], c, any);
  }
  step(equal, '0', equal);
  for (char c = '1'; c <= '9'; ++c) step(equal, c, any);
  // Behind digits before the point: more than the bound has, or [i][how] with i + 1 of them.
  const uint32_t longer = add(true);
  std::vector<std::array<uint32_t, 3>> rows(num_whole);
  for (size_t i = 0; i < num_whole; ++i) {
    const bool last = i + 1 == num_whole;
    rows[i] = {add(false), add(last && digits.fraction.empty() && !exclusive), add(last)};
  }
  step(longer, '.', any_point);
  step_by_any_digit(longer, longer);
  step(rows.back()[kEqual], '.', same[0]);
  step(rows.back()[kGreater], '.', any_point);
  const uint32_t zero = digits.whole == "0" ? rows[0][kEqual] : add(false);
  step(begin, '0', zero);
  for (char c = '1'; c <= '9'; ++c) step(begin, c, rows[0][Compare(c, digits.whole[0])]);
  for (size_t i = 0; i < num_whole; ++i) {
    for (const Comparison how : {kLess, kEqual, kGreater}) {
      for (char c = '0'; c <= '9'; ++c) {
        // No digit follows a zero that comes first.
        if (rows[i][how] == zero) break;
        const bool last = i + 1 == num_whole;
        step(rows[i][how], c,
             last ? longer : rows[i + 1][how != kEqual ? how : Compare(c, digits.whole[i + 1])]);
      }
    }
  }
  for (Language::State& state : states) {
    std::sort(state.arcs.begin(), state.arcs.end(),
              [](const Language::Arc& left, const Language::Arc& right) {
                return left.range.first < right.range.first;
              });
  }
  return Language::FromStates(std::move(states), budget);
}

uint64_t TimesTenTo(uint64_t value, size_t power, uint64_t modulus) {
  for (size_t i = 0; i < power; ++i) value = 10 * value % modulus;
  return value;
}

// Multiples of `factor` * 10^`zeros` / 10^`places` that are not negative. States follow the remainder, by
// `factor`, of the digits read so far.
absl::StatusOr<Language> NotNegativeMultiples(uint64_t factor, size_t zeros, size_t places,
                                              WorkBudget* budget) {
  Nfa nfa;
  static const std::vector<CodeRanges>& digit = *[] {
    auto* const each = new std::vector<CodeRanges>;
    for (uint32_t c = '0'; c <= '9'; ++c) each->push_back({{c, c}});
    return each;
  }();
  static const CodeRanges& point = *new CodeRanges{{'.', '.'}};
  // [0, places]: with so many digits behind the point; the first row is before it.
  std::vector<std::vector<size_t>> rows(places + 1);
  for (std::vector<size_t>& row : rows) {
    for (uint64_t i = 0; i < factor; ++i) row.push_back(nfa.AddState());
  }
  const size_t begin = nfa.AddState();
  const size_t zero = nfa.AddState();  // Behind "0" in front of the point.
  const size_t end = nfa.AddState();
  nfa.AddStep(begin, &digit[0], zero);
  for (uint64_t d = 1; d <= 9; ++d) nfa.AddStep(begin, &digit[d], rows[0][d % factor]);
  // Zeros behind all places that count, and the point in front of them where there are no places.
  const size_t tail_point = nfa.AddState();
  const size_t tail = nfa.AddState();
  nfa.AddStep(tail_point, &digit[0], tail);
  nfa.AddStep(tail, &digit[0], tail);
  nfa.AddEmpty(tail, end);
  const auto end_at = [&](size_t state, uint64_t remainder, size_t row) {
    if (TimesTenTo(remainder, places - row, factor) == 0 && zeros == 0) nfa.AddEmpty(state, end);
    if (row == places && places > 0 && remainder == 0) nfa.AddEmpty(state, tail);
  };
  for (size_t row = 0; row <= places; ++row) {
    TANDEM_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(100 * factor)));
    for (uint64_t remainder = 0; remainder < factor; ++remainder) {
      const size_t state = rows[row][remainder];
      end_at(state, remainder, row);
      for (uint64_t d = 0; d <= 9; ++d) {
        const uint64_t next = (10 * remainder + d) % factor;
        if (row == 0) nfa.AddStep(state, &digit[d], rows[0][next]);
        if (row > 0 && row < places) nfa.AddStep(state, &digit[d], rows[row + 1][next]);
      }
    }
  }
  // The point.
  const auto add_point = [&](size_t state, uint64_t remainder) {
    if (places == 0) {
      if (zeros == 0 && remainder == 0) nfa.AddStep(state, &point, tail_point);
      return;
    }
    const size_t behind = nfa.AddState();
    nfa.AddStep(state, &point, behind);
    for (uint64_t d = 0; d <= 9; ++d) nfa.AddStep(behind, &digit[d], rows[1][(10 * remainder + d) % factor]);
  };
  for (uint64_t remainder = 0; remainder < factor; ++remainder) add_point(rows[0][remainder], remainder);
  add_point(zero, 0);
  nfa.AddEmpty(zero, end);
  if (zeros > 0) {
    // Whole numbers that end with so many zeros behind a multiple of the factor.
    size_t at = rows[0][0];
    for (size_t i = 0; i < zeros; ++i) {
      const size_t next = nfa.AddState();
      nfa.AddStep(at, &digit[0], next);
      at = next;
    }
    nfa.AddEmpty(at, end);
    nfa.AddStep(at, &point, tail_point);
    nfa.AddStep(zero, &point, tail_point);
  }
  return nfa.ToLanguage(begin, end, budget);
}

}  // namespace

absl::StatusOr<std::string> PlainDecimal(absl::string_view text) {
  const bool negative = absl::StartsWith(text, "-");
  if (negative) text.remove_prefix(1);
  int64_t exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != absl::string_view::npos) {
    if (!absl::SimpleAtoi(text.substr(e + 1), &exponent) || exponent < -kMostDigits ||
        exponent > kMostDigits) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected an exponent of -", kMostDigits, " to ", kMostDigits));
    }
    text = text.substr(0, e);
  }
  const Digits parts(text);
  std::string digits = absl::StrCat(parts.whole, parts.fraction);
  int64_t point = static_cast<int64_t>(parts.whole.size()) + exponent;
  if (static_cast<int64_t>(digits.size()) > kMostDigits) {
    return absl::InvalidArgumentError(absl::StrCat("expected at most ", kMostDigits, " digits"));
  }
  if (point < 1) {
    digits.insert(0, static_cast<size_t>(1 - point), '0');
    point = 1;
  }
  if (static_cast<int64_t>(digits.size()) < point) digits.resize(static_cast<size_t>(point), '0');
  std::string whole = digits.substr(0, static_cast<size_t>(point));
  std::string fraction = digits.substr(static_cast<size_t>(point));
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size() - 1));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (!fraction.empty()) absl::StrAppend(&whole, ".", fraction);
  return negative && whole != "0" ? absl::StrCat("-", whole) : whole;
}

absl::StatusOr<Language> AllNumbers(WorkBudget* budget) {
  return Matches("^(-?[1-9][0-9]*(\\.[0-9]+)?|-?0\\.0*[1-9][0-9]*|0(\\.0+)?)$", budget);
}

absl::StatusOr<Language> Integers(WorkBudget* budget) {
  return Matches("^(-?[1-9][0-9]*|0)(\\.0+)?$", budget);
}

absl::StatusOr<Language> NumbersFrom(absl::string_view bound, bool exclusive, WorkBudget* budget) {
  TANDEM_ASSIGN_OR_RETURN(const Language positive, Positive(budget));
  if (!absl::StartsWith(bound, "-")) return NotBelow(bound, exclusive, budget);
  // Below it are those with a minus and what is farther from 0.
  TANDEM_ASSIGN_OR_RETURN(const Language beyond, NotBelow(bound.substr(1), !exclusive, budget));
  TANDEM_ASSIGN_OR_RETURN(const Language near, Language::Subtract(positive, beyond, budget));
  TANDEM_ASSIGN_OR_RETURN(const Language others, NotNegative(budget));
  return Language::Unite(Language::Prefixed('-', near), others, budget);
}

absl::StatusOr<Language> MultiplesOf(absl::string_view divisor, WorkBudget* budget) {
  const Digits parts(divisor);
  std::string digits = absl::StrCat(parts.whole, parts.fraction);
  const size_t places = parts.fraction.size();
  const size_t zeros = places > 0 ? 0 : digits.size() - 1 - digits.find_last_not_of('0');
  digits.resize(digits.size() - zeros);
  uint64_t factor = 0;
  if (digits.size() > 18 || !absl::SimpleAtoi(digits, &factor) || factor * (places + 1) > kMostRemainders) {
    return absl::InvalidArgumentError("too many digits: its multiples cannot be told apart");
  }
  TANDEM_ASSIGN_OR_RETURN(const Language multiples, NotNegativeMultiples(factor, zeros, places, budget));
  TANDEM_ASSIGN_OR_RETURN(Language positive, Positive(budget));
  TANDEM_ASSIGN_OR_RETURN(positive, Language::Intersect(positive, multiples, budget));
  return Language::Unite(Language::Prefixed('-', positive), multiples, budget);
}

absl::StatusOr<Language> OneNumber(absl::string_view number, WorkBudget* budget) {
  const std::string escaped = absl::StrCat("^", number.substr(0, number.find('.')));
  if (!absl::StrContains(number, '.')) return Matches(absl::StrCat(escaped, "(\\.0+)?$"), budget);
  return Matches(absl::StrCat(escaped, "\\.", number.substr(number.find('.') + 1), "0*$"), budget);
}

absl::StatusOr<Language> WithoutFraction(const Language& numbers, WorkBudget* budget) {
  TANDEM_ASSIGN_OR_RETURN(const Language plain, Matches("^-?[0-9]+$", budget));
  return Language::Intersect(numbers, plain, budget);
}

absl::StatusOr<Language> Shortest(const Language& numbers, WorkBudget* budget) {
  TANDEM_ASSIGN_OR_RETURN(const Language shortest, Matches("^-?[0-9]+(\\.[0-9]*[1-9])?$", budget));
  return Language::Intersect(numbers, shortest, budget);
}

}  // namespace tandem
