#include "common/grammar/schema/demands.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;
using Kind = Assertion::Kind;

constexpr size_t kMostConjuncts = 2'000;
constexpr size_t kMostDepth = 400;

struct TypedKeyword {
  absl::string_view name;
  Type type;
};
// Keywords that say something of values of one type only. Those on members and items work together: they are
// asserted as properties and items.
constexpr TypedKeyword kTypedKeywords[] = {
    {"additionalItems", Type::kArray},
    {"additionalProperties", Type::kObject},
    {"contains", Type::kArray},
    {"exclusiveMaximum", Type::kNumber},
    {"exclusiveMinimum", Type::kNumber},
    {"format", Type::kString},
    {"items", Type::kArray},
    {"maxItems", Type::kArray},
    {"maxLength", Type::kString},
    {"maxProperties", Type::kObject},
    {"maximum", Type::kNumber},
    {"minItems", Type::kArray},
    {"minLength", Type::kString},
    {"minProperties", Type::kObject},
    {"minimum", Type::kNumber},
    {"multipleOf", Type::kNumber},
    {"pattern", Type::kString},
    {"patternProperties", Type::kObject},
    {"prefixItems", Type::kArray},
    {"properties", Type::kObject},
    {"propertyNames", Type::kObject},
    {"required", Type::kObject},
    {"unevaluatedItems", Type::kArray},
    {"unevaluatedProperties", Type::kObject},
    {"uniqueItems", Type::kArray},
};

const TypedKeyword* FindTyped(absl::string_view name) {
  const auto found = std::find_if(std::begin(kTypedKeywords), std::end(kTypedKeywords),
                                  [&](const TypedKeyword& keyword) { return keyword.name == name; });
  return found == std::end(kTypedKeywords) ? nullptr : &*found;
}

// `exclusiveMinimum` of draft 4, which says how `minimum` is meant.
bool IsFlagOfOther(absl::string_view name, const JsonValue& value) {
  return value.Is(Type::kBoolean) && (name == "exclusiveMinimum" || name == "exclusiveMaximum");
}

TypeSet TypesOf(const JsonValue& type, bool* integers_only) {
  TypeSet types = 0;
  bool numbers = false;
  bool integers = false;
  const auto add = [&](const JsonValue& one) {
    if (one.text == "null") types |= SetOf(Type::kNull);
    if (one.text == "boolean") types |= SetOf(Type::kBoolean);
    if (one.text == "string") types |= SetOf(Type::kString);
    if (one.text == "array") types |= SetOf(Type::kArray);
    if (one.text == "object") types |= SetOf(Type::kObject);
    numbers |= one.text == "number";
    integers |= one.text == "integer";
  };
  if (type.Is(Type::kString)) add(type);
  for (const JsonValue& one : type.items) add(one);
  if (numbers || integers) types |= SetOf(Type::kNumber);
  *integers_only = integers && !numbers;
  return types;
}

Assertion Says(Kind kind, Type type, std::string place) {
  return Assertion{
      .kind = kind, .type = type, .name = {}, .demand = {}, .place = std::move(place), .scopes = {}};
}

Assertion Has(const std::string& name, bool holds, const std::string& place) {
  Assertion has = Says(Kind::kHas, Type::kObject, place);
  has.name = name;
  has.holds = holds;
  return has;
}

Demand Part(const Demand& whole, const JsonValue& schema, bool holds, std::string place) {
  return {.schema = &schema, .holds = holds, .place = std::move(place), .scopes = whole.scopes};
}

}  // namespace

DemandsKey KeyOf(const Demands& demands) {
  DemandsKey key;
  for (const Demand& demand : demands) {
    if (!demand.schema->IsBoolean(demand.holds)) key.emplace_back(demand.schema, demand.holds);
  }
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  return key;
}

bool IsOnDependents(absl::string_view keyword) {
  return keyword == "dependentRequired" || keyword == "dependentSchemas" || keyword == "dependencies";
}

bool IsEvaluatedWithin(const std::vector<const Assertion*>& all, const Assertion& rest) {
  return std::any_of(all.begin(), all.end(), [&](const Assertion* one) {
    return one->schema != rest.schema &&
           std::find(one->scopes.begin(), one->scopes.end(), rest.schema) != one->scopes.end();
  });
}

absl::StatusOr<std::vector<Conjunct>> DemandSplitter::Split(const Demands& demands) {
  std::vector<Conjunct> conjuncts;
  State state;
  state.open.assign(demands.begin(), demands.end());
  TANDEM_RETURN_IF_ERROR(Expand(std::move(state), 0, &conjuncts));
  return conjuncts;
}

absl::Status DemandSplitter::Expand(State state, size_t depth, std::vector<Conjunct>* conjuncts) {
  if (depth > kMostDepth) return absl::ResourceExhaustedError("too large: too many choices in one schema");
  while (true) {
    while (!state.open.empty()) {
      const Demand demand = std::move(state.open.front());
      state.open.pop_front();
      TANDEM_RETURN_IF_ERROR(Meet(demand, &state));
      if (state.conjunct.types == 0) return absl::OkStatus();
    }
    // Values are looked at one by one: what else they must meet needs no splitting.
    if (state.conjunct.values != nullptr || state.choices.empty()) break;
    const auto is_single = [](const Options& options) { return options.size() <= 1; };
    auto next = std::find_if(state.choices.begin(), state.choices.end(), is_single);
    if (next == state.choices.end()) next = state.choices.begin();
    Options options = std::move(*next);
    state.choices.erase(next);
    if (options.empty()) return absl::OkStatus();
    for (size_t i = 0; i + 1 < options.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(budget_.Spend(
          static_cast<int64_t>(200 + 50 * (state.conjunct.assertions.size() + state.seen.size() +
                                           state.conjunct.demands.size()))));
      State copy = state;
      TANDEM_RETURN_IF_ERROR(Apply(std::move(options[i]), &copy));
      if (copy.conjunct.types != 0) TANDEM_RETURN_IF_ERROR(Expand(std::move(copy), depth + 1, conjuncts));
    }
    TANDEM_RETURN_IF_ERROR(Apply(std::move(options.back()), &state));
    if (state.conjunct.types == 0) return absl::OkStatus();
  }
  if (conjuncts->size() == kMostConjuncts) {
    return absl::ResourceExhaustedError("too large: more than 2,000 combinations of its parts");
  }
  conjuncts->push_back(std::move(state.conjunct));
  return absl::OkStatus();
}

absl::Status DemandSplitter::Apply(Option option, State* state) {
  state->conjunct.types &= option.types;
  for (Assertion& assertion : option.assertions) {
    state->conjunct.types &= SetOf(assertion.type);
    state->conjunct.assertions.push_back(std::move(assertion));
  }
  for (Demand& demand : option.demands) state->open.push_back(std::move(demand));
  return absl::OkStatus();
}

absl::Status DemandSplitter::Meet(const Demand& demand, State* state) {
  std::pair key(std::pair(demand.schema, demand.holds), demand.scopes);
  TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(20 + state->seen.size())));
  if (std::find(state->seen.begin(), state->seen.end(), key) != state->seen.end()) return absl::OkStatus();
  state->seen.push_back(std::move(key));
  state->conjunct.demands.push_back(demand);
  const JsonValue& schema = *demand.schema;
  if (schema.Is(Type::kBoolean)) {
    if (schema.boolean != demand.holds) state->conjunct.types = 0;
    return absl::OkStatus();
  }
  if (!demand.holds) return Refute(demand, state);
  Demand inside = demand;
  if (schema.Find("unevaluatedProperties") != nullptr || schema.Find("unevaluatedItems") != nullptr) {
    inside.scopes.push_back(&schema);
  }
  bool has_properties = false;
  bool has_items = false;
  for (const auto& [name, value] : schema.members) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(30));
    if (IsFlagOfOther(name, value)) continue;
    const TypedKeyword* const typed = FindTyped(name);
    if (typed == nullptr) {
      TANDEM_RETURN_IF_ERROR(MeetKeyword(inside, name, value, state));
      continue;
    }
    Assertion assertion = Says(Kind::kKeyword, typed->type, Below(demand.place, name));
    assertion.name = name;
    if (name == "properties" || name == "patternProperties" || name == "additionalProperties") {
      if (std::exchange(has_properties, true)) continue;
      assertion.name = "properties";
      assertion.place = demand.place;
    } else if (name == "items" || name == "prefixItems" || name == "additionalItems") {
      if (std::exchange(has_items, true)) continue;
      assertion.name = "items";
      assertion.place = demand.place;
    }
    assertion.schema = &schema;
    assertion.scopes = inside.scopes;
    state->conjunct.assertions.push_back(std::move(assertion));
  }
  return absl::OkStatus();
}

absl::Status DemandSplitter::MeetKeyword(const Demand& demand, const std::string& name,
                                         const JsonValue& value, State* state) {
  const std::string place = Below(demand.place, name);
  const JsonValue& schema = *demand.schema;
  if (name == "$ref") {
    const SchemaPlace& target = document_.Target(value);
    state->open.push_back(Part(demand, *target.schema, true, target.pointer));
  } else if (name == "type") {
    bool integers_only = false;
    state->conjunct.types &= TypesOf(value, &integers_only);
    if (integers_only) state->conjunct.assertions.push_back(Says(Kind::kInteger, Type::kNumber, place));
  } else if (name == "enum" || name == "const") {
    if (state->conjunct.values == nullptr) {
      state->conjunct.values = &value;
      state->conjunct.is_const = name == "const";
    }
  } else if (name == "allOf") {
    for (size_t i = 0; i < value.items.size(); ++i) {
      state->open.push_back(Part(demand, value.items[i], true, absl::StrCat(place, "/", i)));
    }
  } else if (name == "anyOf") {
    Options options;
    for (size_t i = 0; i < value.items.size(); ++i) {
      options.push_back({{Part(demand, value.items[i], true, absl::StrCat(place, "/", i))}, {}});
    }
    state->choices.push_back(std::move(options));
  } else if (name == "oneOf") {
    return MeetOneOf(demand, value, state);
  } else if (name == "not") {
    state->open.push_back(Part(demand, value, false, place));
  } else if (name == "if") {
    Option when{{Part(demand, value, true, place)}, {}};
    Option otherwise{{Part(demand, value, false, place)}, {}};
    const JsonValue* const then = schema.Find("then");
    const JsonValue* const or_else = schema.Find("else");
    if (then == nullptr && or_else == nullptr) return absl::OkStatus();
    if (then != nullptr) when.demands.push_back(Part(demand, *then, true, Below(demand.place, "then")));
    if (or_else != nullptr)
      otherwise.demands.push_back(Part(demand, *or_else, true, Below(demand.place, "else")));
    state->choices.push_back({std::move(when), std::move(otherwise)});
  } else if (IsOnDependents(name)) {
    for (const auto& [member, needs] : value.members) {
      const std::string at = Below(place, member);
      // Anything but an object, or one without the member, or one with it and with what it needs.
      Option with{{}, {Has(member, true, at)}};
      if (!needs.Is(Type::kArray)) {
        with.demands.push_back(Part(demand, needs, true, at));
      } else {
        for (const JsonValue& one : needs.items) with.assertions.push_back(Has(one.text, true, at));
      }
      state->choices.push_back({{.demands = {}, .types = static_cast<TypeSet>(~SetOf(Type::kObject))},
                                {{}, {Has(member, false, at)}},
                                std::move(with)});
    }
  }
  return absl::OkStatus();
}

absl::Status DemandSplitter::MeetOneOf(const Demand& demand, const JsonValue& branches, State* state) {
  const std::string place = Below(demand.place, "oneOf");
  const auto branch = [&](size_t i, bool holds) {
    return Part(demand, branches.items[i], holds, absl::StrCat(place, "/", i));
  };
  const size_t count = branches.items.size();
  Options options(count);
  for (size_t i = 0; i < count; ++i) options[i].demands.push_back(branch(i, true));
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = i + 1; j < count; ++j) {
      TANDEM_RETURN_IF_ERROR(budget_.Spend(100));
      TANDEM_ASSIGN_OR_RETURN(const bool disjoint,
                              emptiness_.IsSurelyEmpty({branch(i, true), branch(j, true)}));
      if (disjoint) continue;
      options[i].demands.push_back(branch(j, false));
      options[j].demands.push_back(branch(i, false));
    }
  }
  state->choices.push_back(std::move(options));
  return absl::OkStatus();
}

absl::Status DemandSplitter::Refute(const Demand& refuted, State* state) {
  // What holds within a schema that does not evaluates nothing outside.
  Demand demand = refuted;
  demand.scopes.clear();
  // One of its keywords does not hold.
  Options options;
  for (const auto& [name, value] : demand.schema->members) {
    TANDEM_RETURN_IF_ERROR(RefuteKeyword(demand, name, value, &options));
  }
  state->choices.push_back(std::move(options));
  return absl::OkStatus();
}

absl::Status DemandSplitter::RefuteKeyword(const Demand& demand, const std::string& name,
                                           const JsonValue& value, Options* options) {
  TANDEM_RETURN_IF_ERROR(budget_.Spend(50));
  if (IsFlagOfOther(name, value)) return absl::OkStatus();
  const std::string place = Below(demand.place, name);
  const JsonValue& schema = *demand.schema;
  const auto part = [&](const JsonValue& one, bool holds, std::string at) {
    return Part(demand, one, holds, std::move(at));
  };
  if (name == "$ref") {
    const SchemaPlace& target = document_.Target(value);
    options->push_back({{part(*target.schema, false, target.pointer)}, {}});
  } else if (name == "type") {
    bool integers_only = false;
    const TypeSet types = TypesOf(value, &integers_only);
    const auto others = static_cast<TypeSet>(kAllTypes & ~types);
    if (others != 0) options->push_back({.demands = {}, .types = others});
    if (integers_only) {
      Assertion fraction = Says(Kind::kInteger, Type::kNumber, place);
      fraction.holds = false;
      options->push_back({{}, {std::move(fraction)}});
    }
  } else if (name == "const") {
    return RefuteValues({&value}, place, options);
  } else if (name == "enum") {
    std::vector<const JsonValue*> values;
    for (const JsonValue& one : value.items) values.push_back(&one);
    return RefuteValues(values, place, options);
  } else if (name == "allOf") {
    for (size_t i = 0; i < value.items.size(); ++i) {
      options->push_back({{part(value.items[i], false, absl::StrCat(place, "/", i))}, {}});
    }
  } else if (name == "anyOf" || name == "oneOf") {
    Option none;
    for (size_t i = 0; i < value.items.size(); ++i) {
      none.demands.push_back(part(value.items[i], false, absl::StrCat(place, "/", i)));
    }
    options->push_back(std::move(none));
    for (size_t i = 0; i < value.items.size() && name == "oneOf"; ++i) {
      for (size_t j = i + 1; j < value.items.size(); ++j) {
        TANDEM_RETURN_IF_ERROR(budget_.Spend(100));
        options->push_back({{part(value.items[i], true, absl::StrCat(place, "/", i)),
                             part(value.items[j], true, absl::StrCat(place, "/", j))},
                            {}});
      }
    }
  } else if (name == "not") {
    options->push_back({{part(value, true, place)}, {}});
  } else if (name == "if") {
    for (const char* branch : {"then", "else"}) {
      const JsonValue* const broken = schema.Find(branch);
      if (broken == nullptr) continue;
      options->push_back(
          {{part(value, branch[0] == 't', place), part(*broken, false, Below(demand.place, branch))}, {}});
    }
  } else if (const TypedKeyword* const typed = FindTyped(name);
             typed != nullptr && typed->type == Type::kArray) {
    return RefuteArray(demand, name, value, options);
  } else if (IsOnDependents(name) || (typed != nullptr && typed->type == Type::kObject)) {
    return RefuteObject(demand, name, value, options);
  } else if (typed != nullptr) {
    Assertion assertion = Says(Kind::kKeyword, typed->type, place);
    assertion.name = name;
    assertion.holds = false;
    assertion.schema = &schema;
    options->push_back({{}, {std::move(assertion)}});
  }
  return absl::OkStatus();
}

absl::Status DemandSplitter::RefuteValues(const std::vector<const JsonValue*>& values,
                                          const std::string& place, Options* options) {
  // Types of which no value is left out.
  TypeSet whole = kAllTypes;
  Option numbers;
  Option strings;
  const JsonValue* boolean = nullptr;
  bool both = false;
  for (const JsonValue* value : values) {
    whole &= static_cast<TypeSet>(~SetOf(value->type));
    Assertion is_not = Says(Kind::kIsNot, value->type, place);
    is_not.schema = value;
    switch (value->type) {
      case Type::kNull:
        break;
      case Type::kBoolean:
        both |= boolean != nullptr && boolean->boolean != value->boolean;
        boolean = value;
        break;
      case Type::kNumber:
        numbers.assertions.push_back(std::move(is_not));
        break;
      case Type::kString:
        strings.assertions.push_back(std::move(is_not));
        break;
      case Type::kArray:
      case Type::kObject:
        return InvalidAt(place, "lists and objects cannot be left out: not supported here");
    }
  }
  if (whole != 0) options->push_back({.demands = {}, .types = whole});
  for (Option* option : {&numbers, &strings}) {
    if (!option->assertions.empty()) options->push_back(std::move(*option));
  }
  if (boolean != nullptr && !both) {
    Assertion is_not = Says(Kind::kIsNot, Type::kBoolean, place);
    is_not.schema = boolean;
    options->push_back({{}, {std::move(is_not)}});
  }
  return absl::OkStatus();
}

absl::Status DemandSplitter::RefuteObject(const Demand& demand, const std::string& name,
                                          const JsonValue& value, Options* options) {
  const std::string place = Below(demand.place, name);
  if (name == "required") {
    for (const JsonValue& one : value.items) options->push_back({{}, {Has(one.text, false, place)}});
  } else if (name == "properties") {
    for (const auto& [member, schema] : value.members) {
      Assertion breaks = Says(Kind::kMember, Type::kObject, place);
      breaks.name = member;
      breaks.demand = {&schema, false, Below(place, member)};
      options->push_back({{}, {Has(member, true, place), std::move(breaks)}});
    }
  } else if (IsOnDependents(name)) {
    for (const auto& [member, needs] : value.members) {
      if (!needs.Is(Type::kArray)) {
        options->push_back({{Part(demand, needs, false, Below(place, member))}, {Has(member, true, place)}});
      }
      for (const JsonValue& one : needs.items) {
        options->push_back({{}, {Has(member, true, place), Has(one.text, false, place)}});
      }
    }
  } else if (name == "minProperties" || name == "maxProperties") {
    Assertion assertion = Says(Kind::kKeyword, Type::kObject, place);
    assertion.name = name;
    assertion.holds = false;
    assertion.schema = demand.schema;
    options->push_back({{}, {std::move(assertion)}});
  } else if (!value.IsBoolean(true)) {
    return InvalidAt(place, "its opposite cannot be expressed: not supported here");
  }
  return absl::OkStatus();
}

absl::Status DemandSplitter::RefuteArray(const Demand& demand, const std::string& name,
                                         const JsonValue& value, Options* options) {
  const std::string place = Below(demand.place, name);
  const JsonValue& schema = *demand.schema;
  const ListItems list = ItemsOf(schema);
  const auto refuse = [&] {
    return InvalidAt(place, "its opposite cannot be expressed: not supported here");
  };
  if (name == "minItems" || name == "maxItems") {
    Assertion assertion = Says(Kind::kKeyword, Type::kArray, place);
    assertion.name = name;
    assertion.holds = false;
    assertion.schema = &schema;
    options->push_back({{}, {std::move(assertion)}});
  } else if (&value == list.first) {
    for (size_t i = 0; i < value.items.size(); ++i) {
      Assertion least = Says(Kind::kLeastItems, Type::kArray, place);
      least.index = i + 1;
      Assertion breaks = Says(Kind::kItem, Type::kArray, place);
      breaks.index = i;
      breaks.demand = {&value.items[i], false, absl::StrCat(place, "/", i)};
      options->push_back({{}, {std::move(least), std::move(breaks)}});
    }
  } else if (&value == list.rest) {
    if (value.IsBoolean(true)) return absl::OkStatus();
    const size_t num_first = list.first == nullptr ? 0 : list.first->items.size();
    if (value.IsBoolean(false)) {
      Assertion least = Says(Kind::kLeastItems, Type::kArray, place);
      least.index = num_first + 1;
      options->push_back({{}, {std::move(least)}});
      return absl::OkStatus();
    }
    if (num_first > 0) return refuse();
    Assertion some = Says(Kind::kSomeItem, Type::kArray, place);
    some.demand = {&value, false, place};
    options->push_back({{}, {std::move(some)}});
  } else if (name == "contains") {
    if (schema.Find("minContains") != nullptr || schema.Find("maxContains") != nullptr) return refuse();
    Assertion none = Says(Kind::kItems, Type::kArray, place);
    none.demand = {&value, false, place};
    options->push_back({{}, {std::move(none)}});
  } else if (name != "additionalItems" && !value.IsBoolean(name == "unevaluatedItems")) {
    // What holds in any case, uniqueItems false or unevaluatedItems true, has no opposite.
    return refuse();
  }
  return absl::OkStatus();
}

}  // namespace tandem
