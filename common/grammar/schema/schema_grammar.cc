#include "common/grammar/schema/schema_grammar.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/demands.h"
#include "common/grammar/schema/rule_set.h"
#include "common/grammar/schema/schema_cases.h"
#include "common/grammar/schema/schema_document.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {
namespace {

using Sequence = RuleSet::Sequence;

// About a second.
constexpr int64_t kMostWork = 100'000'000;
// Lists of different values may be in any order if the values are so few: there is a rule for each set of
// them.
constexpr size_t kMostOrdered = 6;
// States of what is counted within one value.
constexpr size_t kMostCounted = 20'000;

absl::Status TooManyCounts() {
  return absl::ResourceExhaustedError("too large: its counts have more than 20,000 combinations");
}

class GrammarMaker {
 public:
  GrammarMaker(const SchemaDocument* document, JsonLayout layout)
      : document_(*document), budget_(kMostWork), cases_(document, &budget_), json_(&rules_, layout) {}

  absl::StatusOr<std::string> Make() {
    rules_.AddRule();
    TANDEM_ASSIGN_OR_RETURN(const size_t root, RuleOf({{&document_.root(), true, "#"}}));
    TANDEM_RETURN_IF_ERROR(rules_.Add(0, {RuleSet::Rule(root)}));
    while (!open_.empty()) {
      const auto [demands, rule] = std::move(open_.front());
      open_.pop_front();
      if (const absl::Status made = AddCases(demands, rule); !made.ok()) {
        return At(demands.empty() ? "#" : demands[0].place, made);
      }
    }
    return rules_.ToEbnf();
  }

 private:
  // The rule of what meets demands. Its alternatives come later.
  absl::StatusOr<size_t> RuleOf(const Demands& demands) {
    DemandsKey key = KeyOf(demands);
    if (key.empty()) return json_.AnyValue();
    const auto [known, added] = known_.emplace(std::move(key), 0);
    if (added) {
      known->second = rules_.AddRule();
      open_.emplace_back(demands, known->second);
    }
    return known->second;
  }

  absl::Status AddCases(const Demands& demands, size_t rule) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<Case>* const cases, cases_.CasesOf(demands));
    // Values that are there: an `enum` may have one twice, and several parts the same one.
    std::set<absl::string_view> texts;
    std::vector<const JsonValue*> others;
    for (const Case& one : *cases) {
      TANDEM_RETURN_IF_ERROR(budget_.Spend(100));
      if (const auto* const value = std::get_if<const JsonValue*>(&one)) {
        if ((*value)->Is(JsonValue::Type::kString)) {
          if (!texts.insert((*value)->text).second) continue;
        } else {
          TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(10 * others.size())));
          const auto same = [&](const JsonValue* other) { return AreEqual(**value, *other); };
          if (std::any_of(others.begin(), others.end(), same)) continue;
          others.push_back(*value);
        }
        TANDEM_RETURN_IF_ERROR(rules_.Add(rule, json_.Value(**value)));
        continue;
      }
      TANDEM_ASSIGN_OR_RETURN(const size_t made,
                              std::visit([&](const auto& c) { return RuleOfCase(c); }, one));
      TANDEM_RETURN_IF_ERROR(rules_.Add(rule, {RuleSet::Rule(made)}));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> RuleOfCase(const JsonValue* value) {
    const size_t rule = rules_.AddRule();
    TANDEM_RETURN_IF_ERROR(rules_.Add(rule, json_.Value(*value)));
    return rule;
  }
  absl::StatusOr<size_t> RuleOfCase(const NumberCase& number) {
    return number.numbers.has_value() ? json_.TextsOf(*number.numbers) : json_.AnyNumber(number.whole);
  }
  absl::StatusOr<size_t> RuleOfCase(const StringCase& string) {
    return string.texts.has_value() ? json_.StringsOf(*string.texts) : json_.StringsOf(string.run);
  }

  absl::StatusOr<size_t> RuleOfCase(const ArrayCase& array);
  absl::StatusOr<size_t> RuleOfDistinct(const ArrayCase& array);
  absl::StatusOr<size_t> RuleOfCounted(const ArrayCase& array);
  absl::StatusOr<size_t> RuleOfCase(const ObjectCase& object);

  // Rules that each say what follows a state; states are what the caller makes of them.
  template <typename State>
  class StateRules {
   public:
    explicit StateRules(RuleSet* rules) : rules_(*rules) {}
    size_t operator()(const State& state) {
      const auto [known, added] = known_.emplace(state, 0);
      if (added) {
        known->second = rules_.AddRule();
        open_.emplace_back(state, known->second);
      }
      return known->second;
    }
    bool Next(State* state, size_t* rule) {
      if (open_.empty()) return false;
      std::tie(*state, *rule) = std::move(open_.front());
      open_.pop_front();
      return true;
    }
    size_t size() const { return known_.size(); }

   private:
    RuleSet& rules_;
    std::map<State, size_t> known_;
    std::deque<std::pair<State, size_t>> open_;
  };

  const SchemaDocument& document_;
  WorkBudget budget_;
  SchemaCases cases_;
  RuleSet rules_;
  JsonRules json_;
  std::map<DemandsKey, size_t> known_;
  std::deque<std::pair<Demands, size_t>> open_;
};

absl::StatusOr<size_t> GrammarMaker::RuleOfCase(const ArrayCase& array) {
  if (array.distinct.has_value()) return RuleOfDistinct(array);
  if (array.some.has_value()) return RuleOfCounted(array);
  // The first items one after the other, then any number of others. `may_end`: as many as there must be.
  const size_t list = rules_.AddRule();
  if (array.least == 0)
    TANDEM_RETURN_IF_ERROR(rules_.Add(list, json_.Open('[') + Sequence{RuleSet::Text("]")}));
  if (array.most == 0) return list;
  size_t rule = list;
  for (size_t i = 0; i < std::min(array.first.size(), array.most); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const size_t item, RuleOf(array.first[i]));
    const size_t behind = rules_.AddRule();
    TANDEM_RETURN_IF_ERROR(rules_.Add(rule, (i == 0 ? json_.Open('[') : json_.Comma()) +
                                                Sequence{RuleSet::Rule(item), RuleSet::Rule(behind)}));
    if (i + 1 >= array.least) TANDEM_RETURN_IF_ERROR(rules_.Add(behind, json_.Close(']')));
    rule = behind;
  }
  if (array.most <= array.first.size()) return list;
  TANDEM_ASSIGN_OR_RETURN(const size_t item, RuleOf(array.rest));
  const size_t next = rules_.AddRule();
  TANDEM_RETURN_IF_ERROR(rules_.Add(next, json_.Comma() + Sequence{RuleSet::Rule(item)}));
  // At least one more, the first of which has no comma in front if it is the first of all.
  const size_t done = std::max<size_t>(array.first.size(), 1);
  Sequence rest = array.first.empty() ? json_.Open('[') + Sequence{RuleSet::Rule(item)} : Sequence{};
  const size_t least = array.least > done ? array.least - done : array.first.empty() ? 0 : 1;
  const size_t most = array.most == kNoLimit ? kNoLimit : array.most - done;
  if (most > 0) rest.push_back(RuleSet::Repeated(next, least, most));
  TANDEM_RETURN_IF_ERROR(rules_.Add(rule, std::move(rest) + json_.Close(']')));
  return list;
}

absl::StatusOr<size_t> GrammarMaker::RuleOfDistinct(const ArrayCase& array) {
  const std::vector<JsonValue>& values = *array.distinct;
  const bool any_order = values.size() <= kMostOrdered;
  const bool bounded = array.most < values.size();
  const size_t most_counted = bounded ? array.most : std::max<size_t>(array.least, 1);
  // Which values may come next, and how many came, as far as that matters. In any order the values are a set
  // of bits, otherwise those from an index on.
  using State = std::pair<size_t, size_t>;
  StateRules<State> rules(&rules_);
  const size_t list = rules({0, 0});
  State state;
  for (size_t rule = 0; rules.Next(&state, &rule);) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(100 * values.size())));
    const size_t gone = state.first;
    const size_t count = state.second;
    const bool full = bounded && count == array.most;
    const size_t next = std::min(count + 1, most_counted);
    const auto add = [&](size_t i, size_t then) {
      return rules_.Add(rule, (count == 0 ? json_.Open('[') : json_.Comma()) + json_.Value(values[i]) +
                                  Sequence{RuleSet::Rule(rules({then, next}))});
    };
    if (!any_order && gone < values.size() && !full) {
      TANDEM_RETURN_IF_ERROR(add(gone, gone + 1));
      TANDEM_RETURN_IF_ERROR(rules_.Add(rule, {RuleSet::Rule(rules({gone + 1, count}))}));
      continue;
    }
    for (size_t i = 0; i < values.size() && any_order && !full; ++i) {
      if ((gone >> i & 1) == 0) TANDEM_RETURN_IF_ERROR(add(i, gone | size_t{1} << i));
    }
    if (count < array.least) continue;
    TANDEM_RETURN_IF_ERROR(
        rules_.Add(rule, count == 0 ? json_.Open('[') + Sequence{RuleSet::Text("]")} : json_.Close(']')));
  }
  return list;
}

absl::StatusOr<size_t> GrammarMaker::RuleOfCounted(const ArrayCase& array) {
  const ArrayCase::SomeItems& some = *array.some;
  // The number of items, and of those that count; both only as far as they matter.
  const bool bounded = array.most != kNoLimit;
  const size_t most_items = bounded ? array.most : std::max({array.first.size(), array.least, size_t{1}});
  const size_t most_some = some.most == kNoLimit ? some.least : some.most;
  using State = std::pair<size_t, size_t>;
  StateRules<State> rules(&rules_);
  const size_t list = rules({0, 0});
  State state;
  for (size_t rule = 0; rules.Next(&state, &rule);) {
    if (rules.size() > kMostCounted) return TooManyCounts();
    const auto [count, found] = state;
    if (count >= array.least && found >= some.least) {
      TANDEM_RETURN_IF_ERROR(
          rules_.Add(rule, count == 0 ? json_.Open('[') + Sequence{RuleSet::Text("]")} : json_.Close(']')));
    }
    if (bounded && count == array.most) continue;
    const size_t next = std::min(count + 1, most_items);
    for (const bool counts : {true, false}) {
      if (counts && found == some.most) continue;
      const size_t now = counts ? std::min(found + 1, most_some) : found;
      // Where no more need to count, an item that would is one of the others.
      if (counts && now == found && some.most == kNoLimit && !some.differs) continue;
      const std::vector<Demands>& first = counts ? some.first : array.first;
      const Demands& demands = count < first.size() ? first[count] : counts ? some.rest : array.rest;
      TANDEM_ASSIGN_OR_RETURN(const size_t one, RuleOf(demands));
      TANDEM_RETURN_IF_ERROR(
          rules_.Add(rule, (count == 0 ? json_.Open('[') : json_.Comma()) +
                               Sequence{RuleSet::Rule(one), RuleSet::Rule(rules({next, now}))}));
    }
  }
  return list;
}

absl::StatusOr<size_t> GrammarMaker::RuleOfCase(const ObjectCase& object) {
  const size_t num_members = object.members.size();
  std::vector<size_t> pairs;
  std::vector<size_t> required_behind(num_members + 1, 0);
  for (const ObjectCase::Member& member : object.members) {
    TANDEM_ASSIGN_OR_RETURN(const size_t value, RuleOf(member.value));
    pairs.push_back(rules_.AddRule());
    TANDEM_RETURN_IF_ERROR(rules_.Add(pairs.back(), Sequence{RuleSet::Text(JsonString(member.name))} +
                                                        json_.Colon() + Sequence{RuleSet::Rule(value)}));
  }
  for (size_t i = num_members; i-- > 0;) {
    required_behind[i] = required_behind[i + 1] + (object.members[i].required ? 1 : 0);
  }
  const size_t other = rules_.AddRule();
  for (const ObjectCase::Others& others : object.others) {
    TANDEM_ASSIGN_OR_RETURN(const size_t name, json_.StringsOf(others.names));
    TANDEM_ASSIGN_OR_RETURN(const size_t value, RuleOf(others.value));
    TANDEM_RETURN_IF_ERROR(
        rules_.Add(other, Sequence{RuleSet::Rule(name)} + json_.Colon() + Sequence{RuleSet::Rule(value)}));
  }
  // The members that are done, how many of them there are as far as that matters, and whether there was one
  // whose name is free: two of those may have the same one, so that they make one sure member.
  struct State {
    size_t next = 0;
    size_t sure = 0;
    size_t written = 0;
    bool any = false;
    bool free = false;
    auto operator<=>(const State&) const = default;
  };
  const bool has_most = object.most != kNoLimit;
  const bool has_least = object.least > required_behind[0];
  StateRules<State> rules(&rules_);
  const size_t whole = rules({});
  State state;
  for (size_t rule = 0; rules.Next(&state, &rule);) {
    if (rules.size() > kMostCounted) return TooManyCounts();
    TANDEM_RETURN_IF_ERROR(budget_.Spend(100));
    const auto add = [&](size_t next, bool is_free, size_t pair) {
      State then = state;
      then.next = next;
      then.any = true;
      if (has_least && !(is_free && state.free)) then.sure = std::min(state.sure + 1, object.least);
      if (has_least) then.free |= is_free;
      if (has_most) ++then.written;
      return rules_.Add(rule, (state.any ? json_.Comma() : json_.Open('{')) +
                                  Sequence{RuleSet::Rule(pair), RuleSet::Rule(rules(then))});
    };
    const size_t left = has_most ? object.most - state.written : kNoLimit;
    const size_t i = state.next;
    if (i < num_members) {
      const bool required = object.members[i].required;
      if (left >= required_behind[i] + (required ? 0 : 1))
        TANDEM_RETURN_IF_ERROR(add(i + 1, false, pairs[i]));
      if (required) continue;
      State without = state;
      ++without.next;
      TANDEM_RETURN_IF_ERROR(rules_.Add(rule, {RuleSet::Rule(rules(without))}));
      continue;
    }
    if (!object.others.empty() && left > 0) TANDEM_RETURN_IF_ERROR(add(num_members, true, other));
    if (has_least && state.sure < object.least) continue;
    TANDEM_RETURN_IF_ERROR(
        rules_.Add(rule, state.any ? json_.Close('}') : json_.Open('{') + Sequence{RuleSet::Text("}")}));
  }
  return whole;
}

}  // namespace

absl::StatusOr<std::string> GrammarOfSchema(absl::string_view schema, JsonLayout layout, size_t max_depth) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<const SchemaDocument> document,
                          SchemaDocument::Read(schema, max_depth));
  absl::StatusOr<std::string> grammar = GrammarMaker(document.get(), layout).Make();
  if (grammar.ok()) return grammar;
  return absl::InvalidArgumentError(At("#", grammar.status()).message());
}

}  // namespace tandem
