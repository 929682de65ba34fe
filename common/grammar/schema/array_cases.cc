// SchemaCases: lists.

#include <algorithm>
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

// What item `index` must meet.
Demands DemandsOf(const Lists& lists, size_t index) {
  Demands demands;
  std::vector<const JsonValue*> evaluated;  // Schemas for which it is.
  for (const Assertion* group : lists.groups) {
    const JsonValue* const first = group->schema->Find("prefixItems");
    const JsonValue* const rest = group->schema->Find("items");
    const JsonValue* said = rest;
    std::string place = Below(group->place, "items");
    if (first != nullptr && index < first->items.size()) {
      said = &first->items[index];
      place = Below(Below(group->place, "prefixItems"), std::to_string(index));
    }
    if (said == nullptr) continue;
    demands.push_back({said, true, std::move(place)});
    evaluated.insert(evaluated.end(), group->scopes.begin(), group->scopes.end());
  }
  for (const Assertion* rest : lists.unevaluated) {
    if (std::find(evaluated.begin(), evaluated.end(), rest->schema) != evaluated.end()) continue;
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
    has_first |= group->schema->Find("prefixItems") != nullptr;
    has_rest |= group->schema->Find("items") != nullptr;
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

absl::Status AddSome(const Assertion& assertion, ArrayCase* array) {
  ArrayCase::SomeItems some;
  if (assertion.kind == Kind::kSomeItem) {
    some.item = {assertion.demand};
  } else {
    const JsonValue& schema = *assertion.schema;
    const JsonValue* const contains = schema.Find("contains");
    const JsonValue* const least = schema.Find("minContains");
    const JsonValue* const most = schema.Find("maxContains");
    some.item = {{contains, true, assertion.place}};
    some.least = least == nullptr ? 1 : CountOf(*least);
    some.most = most == nullptr ? kNoLimit : CountOf(*most);
    if (most != nullptr) some.other = {{contains, false, assertion.place}};
    if (some.least == 0 && most == nullptr) return absl::OkStatus();
  }
  if (array->some.has_value()) {
    if (KeyOf(array->some->item) == KeyOf(some.item) && array->some->least == some.least &&
        array->some->most == some.most) {
      return absl::OkStatus();
    }
    return InvalidAt(assertion.place, "several demands on some items: not supported together");
  }
  array->some = std::move(some);
  return absl::OkStatus();
}

}  // namespace

absl::Status SchemaCases::AddArray(const Conjunct& conjunct, std::vector<Case>* cases) {
  ArrayCase array;
  Lists lists;
  std::string unique_place;
  size_t num_first = 0;
  for (const Assertion& assertion : conjunct.assertions) {
    if (assertion.type != Type::kArray) continue;
    TANDEM_RETURN_IF_ERROR(CountItems(assertion, &array));
    const bool is_keyword = assertion.kind == Kind::kKeyword;
    if (is_keyword && assertion.name == "items") {
      lists.groups.push_back(&assertion);
      const JsonValue* const first = assertion.schema->Find("prefixItems");
      if (first != nullptr) num_first = std::max(num_first, first->items.size());
    } else if (is_keyword && assertion.name == "unevaluatedItems") {
      lists.unevaluated.push_back(&assertion);
    } else if (is_keyword && assertion.name == "uniqueItems") {
      if (assertion.schema->Find("uniqueItems")->boolean) unique_place = assertion.place;
    } else if (assertion.kind == Kind::kSomeItem || (is_keyword && assertion.name == "contains")) {
      TANDEM_RETURN_IF_ERROR(AddSome(assertion, &array));
    } else {
      lists.others.push_back(&assertion);
      if (assertion.kind == Kind::kItem) num_first = std::max(num_first, assertion.index + 1);
    }
  }
  if (num_first > kMostFirst) return absl::ResourceExhaustedError("too large: more than 10,000 prefixItems");
  array.rest = DemandsOf(lists, num_first);
  if (IsNothing(array.rest)) {
    array.most = std::min(array.most, num_first);
  } else if (!IsOpen(lists, array.some.has_value()) && array.least <= num_first) {
    array.most = std::min(array.most, num_first);
  }
  for (size_t i = 0; i < std::min(num_first, array.most); ++i) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(50 + 50 * lists.groups.size())));
    array.first.push_back(DemandsOf(lists, i));
    if (!IsNothing(array.first.back())) continue;
    array.first.pop_back();
    array.most = i;
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
