// SchemaCases: objects.

#include <algorithm>
#include <map>
#include <set>
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

// Every set of patterns that a name may match is a kind of names of its own.
constexpr size_t kMostPatterns = 5;
// Names that a pattern allows become members of their own if they are so few.
constexpr size_t kMostNames = 64;
// States of the automaton that leaves out the listed names: nearly every token is possible in each of them,
// so that masks for each are dear.
constexpr size_t kMostExcluded = 32;

// What a conjunct says of objects.
struct Objects {
  std::vector<const Assertion*> groups;       // `properties` and its like, of one schema.
  std::vector<const Assertion*> unevaluated;  // `unevaluatedProperties`.
  std::vector<const Assertion*> members;
  Demands names;                          // `propertyNames`.
  std::vector<std::string> order;         // Names that are mentioned.
  std::map<std::string, bool> mentioned;  // And whether they are required.
  std::set<std::string> excluded;
  std::vector<std::string> patterns;
  std::string count_place;

  void Mention(const std::string& name, bool required) {
    const auto [known, added] = mentioned.emplace(name, required);
    if (added) order.push_back(name);
    known->second |= required;
  }
};

struct Meaning {
  Demands demands;
  bool listed = false;  // The schema speaks of it.
};

// What a member must meet whose name is `name`, or some name that is not mentioned if that is nullptr, and
// that matches `matched` of the patterns.
Meaning MeaningOf(const Objects& objects, const std::string* name, const std::set<std::string>& matched) {
  Meaning meaning;
  std::vector<const JsonValue*> evaluated;  // Schemas for which it is.
  for (const Assertion* group : objects.groups) {
    const JsonValue& schema = *group->schema;
    bool known = false;
    const auto add = [&](const JsonValue& said, std::string place) {
      meaning.demands.push_back({&said, true, std::move(place)});
      known = true;
    };
    if (const JsonValue* const listed = schema.Find("properties"); listed != nullptr && name != nullptr) {
      const JsonValue* const said = listed->Find(*name);
      if (said != nullptr) add(*said, Below(Below(group->place, "properties"), *name));
    }
    if (const JsonValue* const patterns = schema.Find("patternProperties"); patterns != nullptr) {
      for (const auto& [pattern, said] : patterns->members) {
        if (matched.contains(pattern)) add(said, Below(Below(group->place, "patternProperties"), pattern));
      }
    }
    const JsonValue* const additional = schema.Find("additionalProperties");
    if (!known && additional != nullptr) add(*additional, Below(group->place, "additionalProperties"));
    if (known) evaluated.insert(evaluated.end(), group->scopes.begin(), group->scopes.end());
    meaning.listed |= known;
  }
  for (const Assertion* rest : objects.unevaluated) {
    if (std::find(evaluated.begin(), evaluated.end(), rest->schema) != evaluated.end()) continue;
    if (IsEvaluatedWithin(objects.unevaluated, *rest)) continue;
    meaning.demands.push_back({rest->schema->Find("unevaluatedProperties"), true, rest->place});
    meaning.listed = true;
  }
  for (const Assertion* member : objects.members) {
    if (name != nullptr && member->name == *name) meaning.demands.push_back(member->demand);
  }
  return meaning;
}

void CountMembers(const Assertion& assertion, Objects* objects, ObjectCase* object, bool* possible) {
  const size_t count = CountOf(*assertion.schema->Find(assertion.name));
  objects->count_place = assertion.place;
  if ((assertion.name == "minProperties") == assertion.holds) {
    object->least = std::max(object->least, count + (assertion.holds ? 0 : 1));
  } else if (!assertion.holds && count == 0) {
    *possible = false;
  } else {
    object->most = std::min(object->most, count - (assertion.holds ? 0 : 1));
  }
}

// Sorts what a conjunct says. Returns whether there may be such an object.
bool Collect(const Conjunct& conjunct, Objects* objects, ObjectCase* object) {
  bool possible = true;
  for (const Assertion& assertion : conjunct.assertions) {
    if (assertion.type != Type::kObject) continue;
    if (assertion.kind == Kind::kHas) {
      if (assertion.holds) {
        objects->Mention(assertion.name, true);
      } else {
        objects->excluded.insert(assertion.name);
      }
    } else if (assertion.kind == Kind::kMember) {
      objects->Mention(assertion.name, false);
      objects->members.push_back(&assertion);
    } else if (assertion.name == "properties") {
      objects->groups.push_back(&assertion);
      if (const JsonValue* const listed = assertion.schema->Find("properties"); listed != nullptr) {
        for (const auto& [name, schema] : listed->members) objects->Mention(name, false);
      }
      if (const JsonValue* const patterns = assertion.schema->Find("patternProperties");
          patterns != nullptr) {
        for (const auto& [pattern, schema] : patterns->members) objects->patterns.push_back(pattern);
      }
    } else if (assertion.name == "required") {
      // Behind those that some schema lists.
      continue;
    } else if (assertion.name == "unevaluatedProperties") {
      objects->unevaluated.push_back(&assertion);
    } else if (assertion.name == "propertyNames") {
      objects->names.push_back({assertion.schema->Find("propertyNames"), true, assertion.place});
    } else {
      CountMembers(assertion, objects, object, &possible);
    }
  }
  for (const Assertion& assertion : conjunct.assertions) {
    if (assertion.name != "required" || assertion.kind != Kind::kKeyword) continue;
    for (const JsonValue& name : assertion.schema->Find("required")->items) objects->Mention(name.text, true);
  }
  auto& patterns = objects->patterns;
  std::sort(patterns.begin(), patterns.end());
  patterns.erase(std::unique(patterns.begin(), patterns.end()), patterns.end());
  return possible;
}

// Whether the schema lists anything, so that other names are not meant.
bool ListsNames(const Objects& objects) {
  return !objects.order.empty() || !objects.patterns.empty() ||
         std::any_of(objects.groups.begin(), objects.groups.end(),
                     [](const Assertion* group) { return group->schema->Find("properties") != nullptr; });
}

}  // namespace

absl::Status SchemaCases::AddObject(const Conjunct& conjunct, std::vector<Case>* cases) {
  Objects objects;
  ObjectCase object;
  if (!Collect(conjunct, &objects, &object)) return absl::OkStatus();
  if (objects.patterns.size() > kMostPatterns) {
    return InvalidAt(objects.groups[0]->place, "patternProperties: more than 5 patterns are not supported");
  }
  std::vector<const Language*> patterns;
  for (const std::string& pattern : objects.patterns) {
    TANDEM_ASSIGN_OR_RETURN(patterns.emplace_back(), PatternLanguage(pattern, objects.groups[0]->place));
  }
  size_t num_required = 0;
  for (const std::string& name : objects.order) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(100 + 50 * objects.groups.size())));
    std::set<std::string> matched;
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (patterns[i]->Accepts(name)) matched.insert(objects.patterns[i]);
    }
    Meaning meaning = MeaningOf(objects, &name, matched);
    bool possible = !objects.excluded.contains(name) && !IsNothing(meaning.demands);
    for (const Demand& demand : objects.names) {
      if (!possible) break;
      TANDEM_ASSIGN_OR_RETURN(possible, Meets(JsonValue::OfText(name), demand));
    }
    const bool required = objects.mentioned.at(name);
    if (required && !possible) return absl::OkStatus();
    if (!possible) continue;
    num_required += required ? 1 : 0;
    object.members.push_back({name, required, std::move(meaning.demands)});
  }
  TANDEM_RETURN_IF_ERROR(AddOthers(
      objects.names,
      [&] {
        OtherNames others;
        others.mentioned = objects.order;
        others.mentioned.insert(others.mentioned.end(), objects.excluded.begin(), objects.excluded.end());
        others.patterns = patterns;
        const bool closed = ListsNames(objects) && object.least <= object.members.size();
        for (size_t kind = 0; kind < size_t{1} << patterns.size(); ++kind) {
          std::set<std::string> matched;
          for (size_t i = 0; i < patterns.size(); ++i) {
            if ((kind >> i & 1) != 0) matched.insert(objects.patterns[i]);
          }
          Meaning meaning = MeaningOf(objects, nullptr, matched);
          const bool wanted = (meaning.listed || !closed) && !IsNothing(meaning.demands);
          others.kinds.emplace_back(wanted, std::move(meaning.demands));
        }
        return others;
      }(),
      &object));
  object.least = std::max(object.least, num_required);
  const size_t possible = object.members.size();
  if (object.least > object.most || (object.least > possible && object.others.empty()))
    return absl::OkStatus();
  if (object.least > possible + 1) {
    return InvalidAt(objects.count_place,
                     "two properties whose names are free may have the same one: not supported");
  }
  cases->push_back(std::move(object));
  return absl::OkStatus();
}

absl::Status SchemaCases::AddOthers(const Demands& names, const OtherNames& others, ObjectCase* object) {
  const auto is_wanted = [](const auto& kind) { return kind.first; };
  if (std::none_of(others.kinds.begin(), others.kinds.end(), is_wanted)) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const Language mentioned,
                          Language::AtLeast(others.mentioned, kMostExcluded, &budget_));
  TANDEM_ASSIGN_OR_RETURN(Language all, Language::Subtract(Language::All(), mentioned, &budget_));
  if (!names.empty()) {
    const absl::StatusOr<Language> texts = TextsOf(names);
    if (absl::IsFailedPrecondition(texts.status()))
      return InvalidAt(names[0].place, texts.status().message());
    if (!texts.ok()) return At(names[0].place, texts.status());
    TANDEM_ASSIGN_OR_RETURN(all, Language::Intersect(all, *texts, &budget_));
  }
  for (size_t kind = 0; kind < others.kinds.size(); ++kind) {
    const auto& [wanted, value] = others.kinds[kind];
    if (!wanted) continue;
    Language texts = all;
    for (size_t i = 0; i < others.patterns.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(texts, (kind >> i & 1) != 0
                                         ? Language::Intersect(texts, *others.patterns[i], &budget_)
                                         : Language::Subtract(texts, *others.patterns[i], &budget_));
    }
    if (texts.IsEmpty()) continue;
    if (const auto few = texts.TextsUpTo(kMostNames); few.has_value()) {
      for (const std::string& name : *few) object->members.push_back({name, false, value});
    } else {
      object->others.push_back({std::move(texts), value});
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
