#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/json_value.h"
#include "common/grammar/schema/schema_document.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {

// That a value is valid by a schema, or that it is not.
struct Demand {
  const JsonValue* schema = nullptr;
  bool holds = true;
  std::string place;  // Of the schema.
  // Schemas around it with unevaluatedProperties or unevaluatedItems, of which it is part.
  std::vector<const JsonValue*> scopes = {};
};
// All of them; none allow anything.
using Demands = std::vector<Demand>;

// What demands on the same values have in common, whatever their order and places.
using DemandsKey = std::vector<std::pair<const JsonValue*, bool>>;
DemandsKey KeyOf(const Demands& demands);

// Sets of types of JSON.
using TypeSet = uint8_t;
inline constexpr TypeSet kAllTypes = 63;
constexpr TypeSet SetOf(JsonValue::Type type) {
  return static_cast<TypeSet>(1 << static_cast<int>(type));
}

// Something simple that holds for values of one type. What a keyword demands, or does not, or one of these:
struct Assertion {
  enum class Kind : uint8_t {
    kKeyword,     // What the keyword `name` of `schema` says; if `holds` is false, its opposite.
    kInteger,     // A number is whole, or not.
    kIsNot,       // It is not `schema`, a scalar.
    kHas,         // An object has a member `name`; if `holds` is false, it has none.
    kMember,      // If an object has a member `name`, it meets `demand`.
    kItem,        // If an array has an item `index`, it meets `demand`.
    kItems,       // All items meet `demand`.
    kSomeItem,    // At least one item meets `demand`.
    kLeastItems,  // There are `index` items at least.
  };
  Kind kind = Kind::kKeyword;
  JsonValue::Type type = JsonValue::Type::kNull;
  bool holds = true;
  std::string name;
  size_t index = 0;
  const JsonValue* schema = nullptr;
  Demand demand;
  std::string place;
  std::vector<const JsonValue*> scopes;
};

// `dependentRequired`, `dependentSchemas`, or both in one as older drafts have it: lists of names, and
// schemas.
bool IsOnDependents(absl::string_view keyword);

// Whether a schema within that of `rest` has the same keyword, `unevaluatedItems` or `unevaluatedProperties`:
// all that it leaves is evaluated then. `all`: all assertions of that keyword.
bool IsEvaluatedWithin(const std::vector<const Assertion*>& all, const Assertion& rest);

// One way to meet demands: a value of one of these types, for which all that was asserted of its type holds.
struct Conjunct {
  TypeSet types = kAllTypes;
  // If set, one of the values of this `enum`, or that of this `const`. Then `demands` say all else.
  const JsonValue* values = nullptr;
  bool is_const = false;
  std::vector<Assertion> assertions;
  Demands demands;  // All that were met on the way.
};

// Takes demands apart into what is simple: keywords that combine schemas are gone. A value meets the demands
// if and only if one of the conjuncts holds for it.
//
// Errors: InvalidArgument with a place for what has no opposite that could be asserted, and
// ResourceExhausted.
class DemandSplitter {
 public:
  // `disjoint`: says whether no value meets these demands; it may answer no where it does not know.
  class Emptiness {
   public:
    virtual ~Emptiness() = default;
    virtual absl::StatusOr<bool> IsSurelyEmpty(const Demands& demands) = 0;
  };
  // All three must outlive the splitter.
  DemandSplitter(const SchemaDocument* document, Emptiness* emptiness, WorkBudget* budget)
      : document_(*document), emptiness_(*emptiness), budget_(*budget) {}

  absl::StatusOr<std::vector<Conjunct>> Split(const Demands& demands);

 private:
  // One of several ways on.
  struct Option {
    Demands demands;
    std::vector<Assertion> assertions = {};
    TypeSet types = kAllTypes;
  };
  using Options = std::vector<Option>;
  struct State {
    Conjunct conjunct;
    std::deque<Demand> open;
    std::vector<Options> choices;  // Of each one option must hold.
    std::vector<std::pair<std::pair<const JsonValue*, bool>, std::vector<const JsonValue*>>> seen;
  };

  absl::Status Expand(State state, size_t depth, std::vector<Conjunct>* conjuncts);
  absl::Status Apply(Option option, State* state);
  absl::Status Meet(const Demand& demand, State* state);
  absl::Status MeetKeyword(const Demand& demand, const std::string& name, const JsonValue& value,
                           State* state);
  absl::Status MeetOneOf(const Demand& demand, const JsonValue& branches, State* state);
  absl::Status Refute(const Demand& refuted, State* state);
  absl::Status RefuteKeyword(const Demand& demand, const std::string& name, const JsonValue& value,
                             Options* options);
  absl::Status RefuteValues(const std::vector<const JsonValue*>& values, const std::string& place,
                            Options* options);
  absl::Status RefuteObject(const Demand& demand, const std::string& name, const JsonValue& value,
                            Options* options);
  absl::Status RefuteArray(const Demand& demand, const std::string& name, const JsonValue& value,
                           Options* options);

  const SchemaDocument& document_;
  Emptiness& emptiness_;
  WorkBudget& budget_;
};

}  // namespace tandem
