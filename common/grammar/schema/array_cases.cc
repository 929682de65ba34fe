// SchemaCases: lists.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/schema_cases.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;
using Kind = Assertion::Kind;

// Of which lists of different ones are made.
constexpr size_t kMostDistinct = 64;
constexpr size_t kMostFirst = 10'000;

struct Lists {
  std::vector<const Assertion*> groups;       // `items` and `prefixItems` of one schema.
  std::vector<const Assertion*> unevaluated;  // `unevaluatedItems`.
  std::vector<const Assertion*> others;
};

// Items that count for `contains`, or for a list that must have one that breaks something.
struct Counted {
  Demands item;
  Demands other;  // What an item meets that does not count, if there is a `most`.
  size_t least = 1;
  size_t most = kNoLimit;
  std::vector<const JsonValue*> scopes;  // Schemas for which such an item is evaluated.
};

// What item `index` must meet, if it counts or if it does not.
Demands DemandsOf(const Lists& lists, size_t index, const Counted* counts) {
  Demands demands;
  if (counts != nullptr) demands = counts->item;
  std::vector<const JsonValue*> evaluated;  // Schemas for which it is.
  if (counts != nullptr) evaluated = counts->scopes;
  for (const Assertion* group : lists.groups) {
    const ListItems list = ItemsOf(*group->schema);
    const JsonValue* said = list.rest;
    std::string place = Below(group->place, list.rest_name);
    if (list.first != nullptr && index < list.first->items.size()) {
      said = &list.first->items[index];
      place = Below(Below(group->place, list.first_name), std::to_string(index));
    }
    if (said == nullptr) continue;
    demands.push_back({said, true, std::move(place)});
    evaluated.insert(evaluated.end(), group->scopes.begin(), group->scopes.end());
  }
  for (const Assertion* rest : lists.unevaluated) {
    if (std::find(evaluated.begin(), evaluated.end(), rest->schema) != evaluated.end()) continue;
    if (IsEvaluatedWithin(lists.unevaluated, *rest)) continue;
    demands.push_back({rest->schema->Find("unevaluatedItems"), true, rest->place});
  }
  for (const Assertion* other : lists.others) {
    if (other->kind == Kind::kItems || (other->kind == Kind::kItem && other->index == index)) {
      demands.push_back(other->demand);
    }
  }
  return demands;
}

// Whether the schema speaks of items behind the first ones, or of no first ones.
bool IsOpen(const Lists& lists, bool has_some) {
  bool has_first = false;
  bool has_rest = has_some || !lists.unevaluated.empty();
  for (const Assertion* group : lists.groups) {
    const ListItems list = ItemsOf(*group->schema);
    has_first |= list.first != nullptr;
    has_rest |= list.rest != nullptr;
  }
  return has_rest || !has_first;
}

absl::Status CountItems(const Assertion& assertion, ArrayCase* array) {
  if (assertion.kind == Kind::kLeastItems) array->least = std::max(array->least, assertion.index);
  if (assertion.kind != Kind::kKeyword) return absl::OkStatus();
  if (assertion.name != "minItems" && assertion.name != "maxItems") return absl::OkStatus();
  const size_t count = CountOf(*assertion.schema->Find(assertion.name));
  if ((assertion.name == "minItems") == assertion.holds) {
    array->least = std::max(array->least, count + (assertion.holds ? 0 : 1));
  } else if (!assertion.holds && count == 0) {
    array->most = 0;
    array->least = 1;
  } else {
    array->most = std::min(array->most, count - (assertion.holds ? 0 : 1));
  }
  return absl::OkStatus();
}

// `evaluates`: the list has `unevaluatedItems`, so that it matters which items match.
absl::Status AddCounted(const Assertion& assertion, bool evaluates, std::optional<Counted>* counted) {
  Counted some;
  if (assertion.kind == Kind::kSomeItem) {
    some.item = {assertion.demand};
  } else {
    some.scopes = assertion.scopes;
    const JsonValue& schema = *assertion.schema;
    const JsonValue* const contains = schema.Find("contains");
    const JsonValue* const least = schema.Find("minContains");
    const JsonValue* const most = schema.Find("maxContains");
    some.item = {{contains, true, assertion.place}};
    some.least = least == nullptr ? 1 : CountOf(*least);
    some.most = most == nullptr ? kNoLimit : CountOf(*most);
    if (most != nullptr) some.other = {{contains, false, assertion.place}};
    if (some.least == 0 && most == nullptr && !evaluates) return absl::OkStatus();
  }
  if (!counted->has_value()) {
    *counted = std::move(some);
    return absl::OkStatus();
  }
  if (KeyOf((*counted)->item) != KeyOf(some.item) || (*counted)->least != some.least ||
      (*counted)->most != some.most) {
    return InvalidAt(assertion.place, "several demands on some items: not supported together");
  }
  (*counted)->scopes.insert((*counted)->scopes.end(), some.scopes.begin(), some.scopes.end());
  return absl::OkStatus();
}

}  // namespace

absl::Status SchemaCases::AddArray(const Conjunct& conjunct, std::vector<Case>* cases) {
  ArrayCase array;
  Lists lists;
  std::vector<const Assertion*> some;
  std::string unique_place;
  size_t num_first = 0;
  for (const Assertion& assertion : conjunct.assertions) {
    if (assertion.type != Type::kArray) continue;
    TANDEM_RETURN_IF_ERROR(CountItems(assertion, &array));
    const bool is_keyword = assertion.kind == Kind::kKeyword;
    if (is_keyword && assertion.name == "items") {
      lists.groups.push_back(&assertion);
      const JsonValue* const first = ItemsOf(*assertion.schema).first;
      if (first != nullptr) num_first = std::max(num_first, first->items.size());
    } else if (is_keyword && assertion.name == "unevaluatedItems") {
      lists.unevaluated.push_back(&assertion);
    } else if (is_keyword && assertion.name == "uniqueItems") {
      if (assertion.schema->Find("uniqueItems")->boolean) unique_place = assertion.place;
    } else if (assertion.kind == Kind::kSomeItem || (is_keyword && assertion.name == "contains")) {
      some.push_back(&assertion);
    } else {
      lists.others.push_back(&assertion);
      if (assertion.kind == Kind::kItem) num_first = std::max(num_first, assertion.index + 1);
    }
  }
  if (num_first > kMostFirst) return absl::ResourceExhaustedError("too large: more than 10,000 prefixItems");
  std::optional<Counted> counted;
  for (const Assertion* one : some) {
    TANDEM_RETURN_IF_ERROR(AddCounted(*one, !lists.unevaluated.empty(), &counted));
  }
  if (counted.has_value()) {
    const bool differs = !counted->scopes.empty() || !counted->other.empty();
    array.some = ArrayCase::SomeItems{
        .first = {}, .rest = {}, .least = counted->least, .most = counted->most, .differs = differs};
  }
  // Whether there may be an item `index`.
  const auto add_item = [&](size_t index, Demands* plain, Demands* counting) {
    *plain = DemandsOf(lists, index, nullptr);
    if (!counted.has_value()) return !IsNothing(*plain);
    plain->insert(plain->end(), counted->other.begin(), counted->other.end());
    *counting = DemandsOf(lists, index, &*counted);
    return !IsNothing(*plain) || !IsNothing(*counting);
  };
  Demands rest;
  if (!add_item(num_first, &array.rest, &rest) ||
      (!IsOpen(lists, counted.has_value()) && array.least <= num_first)) {
    array.most = std::min(array.most, num_first);
  }
  if (counted.has_value()) array.some->rest = std::move(rest);
  for (size_t i = 0; i < std::min(num_first, array.most); ++i) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(50 + 50 * lists.groups.size())));
    Demands plain;
    Demands counting;
    if (!add_item(i, &plain, &counting)) {
      array.most = i;
      break;
    }
    array.first.push_back(std::move(plain));
    if (counted.has_value()) array.some->first.push_back(std::move(counting));
  }
  if (array.least > array.most) return absl::OkStatus();
  if (!unique_place.empty() && array.most > 1) {
    TANDEM_ASSIGN_OR_RETURN(const bool possible, MakeDistinct(unique_place, &array));
    if (!possible) return absl::OkStatus();
  }
  cases->push_back(std::move(array));
  return absl::OkStatus();
}

absl::StatusOr<bool> SchemaCases::MakeDistinct(const std::string& place, ArrayCase* array) {
  if (!array->first.empty() || array->some.has_value()) {
    return InvalidAt(place, "not supported together with prefixItems and contains");
  }
  TANDEM_ASSIGN_OR_RETURN(array->distinct, FiniteValues(array->rest, kMostDistinct));
  if (!array->distinct.has_value()) {
    return InvalidAt(place, "expected items of which there are 64 at most, such as an enum");
  }
  array->most = std::min(array->most, array->distinct->size());
  return array->least <= array->most;
}

}  // namespace tandem
