#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/demands.h"
#include "common/grammar/schema/json_value.h"
#include "common/grammar/schema/language.h"
#include "common/grammar/schema/pattern.h"
#include "common/grammar/schema/schema_document.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {

// The values that meet some demands, as a list of cases. A value in several of them is no harm.

// Any number, or any whole one; if `numbers` is set, one of these (numbers.h).
struct NumberCase {
  bool whole = false;
  std::optional<Language> numbers;
};

// One of the texts of `texts`, if that is set; else a run.
struct StringCase {
  CharacterRun run = {.characters = AllCodePoints()};
  std::optional<Language> texts;
};

struct ArrayCase {
  // Items that are counted, which meet other demands than the others: those on the first items, and on the
  // rest.
  struct SomeItems {
    std::vector<Demands> first;
    Demands rest;
    size_t least = 1;
    size_t most = kNoLimit;
    // An item that counts need not meet what those that do not count must meet.
    bool differs = false;
  };
  std::vector<Demands> first;  // Of the first items, one by one.
  Demands rest;                // Of those behind them.
  size_t least = 0;
  size_t most = kNoLimit;
  std::optional<SomeItems> some;
  // Items are different ones of these values, instead of all of the above but the counts.
  std::optional<std::vector<JsonValue>> distinct;
};

struct ObjectCase {
  struct Member {
    std::string name;
    bool required = false;
    Demands value;
  };
  // Members whose names the schema does not list.
  struct Others {
    Language names;
    Demands value;
  };
  std::vector<Member> members;  // In the order in which they are written.
  std::vector<Others> others;
  size_t least = 0;
  size_t most = kNoLimit;
};

// A value as it stands is one case of its own.
using Case = std::variant<const JsonValue*, NumberCase, StringCase, ArrayCase, ObjectCase>;

// Finds the cases of a document's schemas. What is not asked for is generated only where the schema asks: an
// object that lists properties has others only where the schema speaks of others, and a list that has
// prefixItems has no more items than those unless the schema speaks of more.
class SchemaCases : public DemandSplitter::Emptiness {
 public:
  // Both must outlive this.
  SchemaCases(const SchemaDocument* document, WorkBudget* budget)
      : document_(*document), budget_(*budget), splitter_(document, this, budget) {}

  // They stay where they are as long as this does. Errors: InvalidArgument with a place for what cannot be
  // said exactly, and ResourceExhausted.
  absl::StatusOr<const std::vector<Case>*> CasesOf(const Demands& demands);
  absl::StatusOr<bool> IsSurelyEmpty(const Demands& demands) override;

 private:
  // Whether a value meets a demand (value_check.cc).
  absl::StatusOr<bool> Meets(const JsonValue& value, const Demand& demand);
  absl::StatusOr<bool> IsValid(const JsonValue& value, const JsonValue& schema, const std::string& place);
  absl::StatusOr<bool> IsValidByKeyword(const JsonValue& value, const JsonValue& schema,
                                        const std::string& name, const JsonValue& operand,
                                        const std::string& place);
  absl::StatusOr<bool> IsListed(const JsonValue& value, const JsonValue& list);
  absl::StatusOr<bool> IsValidPart(const JsonValue& value, const JsonValue& schema, const std::string& name,
                                   const JsonValue& operand, const std::string& place);
  absl::StatusOr<bool> IsValidArray(const JsonValue& value, const JsonValue& schema, const std::string& name,
                                    const JsonValue& operand, const std::string& place);
  absl::StatusOr<bool> IsValidObject(const JsonValue& value, const JsonValue& schema, const std::string& name,
                                     const JsonValue& operand, const std::string& place);

  absl::StatusOr<std::vector<Case>> FindCases(const Demands& demands);
  absl::StatusOr<bool> HasNoCase(const Demands& demands);
  absl::Status AddValues(const Conjunct& conjunct, std::vector<Case>* cases);
  absl::Status AddScalars(const Conjunct& conjunct, std::vector<Case>* cases);
  absl::Status AddNumber(const Conjunct& conjunct, std::vector<Case>* cases);
  absl::Status AddString(const Conjunct& conjunct, std::vector<Case>* cases);
  // array_cases.cc
  absl::Status AddArray(const Conjunct& conjunct, std::vector<Case>* cases);
  absl::StatusOr<bool> MakeDistinct(const std::string& place, ArrayCase* array);
  // object_cases.cc
  struct OtherNames {
    std::vector<std::string> mentioned;  // They are not among the others.
    std::vector<const Language*> patterns;
    // For each set of patterns, pattern i being in set s if bit i of s is set: whether there may be members
    // whose names match just these, and what such members meet.
    std::vector<std::pair<bool, Demands>> kinds;
  };
  absl::Status AddObject(const Conjunct& conjunct, std::vector<Case>* cases);
  absl::Status AddOthers(const Demands& names, const OtherNames& others, ObjectCase* object);

  // What a keyword on numbers or strings says. A `format` that JSON Schema does not define has all texts.
  absl::StatusOr<const Language*> LanguageOf(const JsonValue& schema, const std::string& name,
                                             const std::string& place);
  absl::StatusOr<Language> MakeLanguage(const JsonValue& schema, const std::string& name);
  absl::StatusOr<const Language*> PatternLanguage(const std::string& pattern, const std::string& place);
  // All values, if there are no more than `most` and it is easily seen.
  absl::StatusOr<std::optional<std::vector<JsonValue>>> FiniteValues(const Demands& demands, size_t most);
  // The texts that meet demands.
  absl::StatusOr<Language> TextsOf(const Demands& demands);

  const SchemaDocument& document_;
  WorkBudget& budget_;
  DemandSplitter splitter_;
  std::map<DemandsKey, std::unique_ptr<const std::vector<Case>>> known_;
  std::set<DemandsKey> in_work_;
  std::map<std::pair<const JsonValue*, std::string>, std::unique_ptr<const Language>> languages_;
  std::map<std::string, std::unique_ptr<const Language>> patterns_;
  // The texts that an `enum` lists: long ones list texts, each of which is looked up.
  std::map<const JsonValue*, std::set<absl::string_view>> listed_texts_;
  size_t emptiness_depth_ = 0;
  size_t check_depth_ = 0;
};

// A count of a schema, or the greatest there is.
size_t CountOf(const JsonValue& value);
// Nothing meets it, as can be seen without looking further.
bool IsNothing(const Demands& demands);

}  // namespace tandem
