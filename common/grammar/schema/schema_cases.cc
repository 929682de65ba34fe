#include "common/grammar/schema/schema_cases.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/formats.h"
#include "common/grammar/schema/numbers.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;
using Kind = Assertion::Kind;

// Schemas whose cases depend on one another.
constexpr size_t kMostInWork = 30;
// Of members within members that are looked at.
constexpr size_t kMostEmptinessDepth = 4;

const JsonValue& Null() {
  static const JsonValue& null = *new JsonValue;
  return null;
}
const JsonValue& Boolean(bool value) {
  static const JsonValue& yes = *new JsonValue(JsonValue::OfBoolean(true));
  static const JsonValue& no = *new JsonValue(JsonValue::OfBoolean(false));
  return value ? yes : no;
}

absl::Status InWork() {
  return absl::FailedPreconditionError("it depends on itself: not supported here");
}

}  // namespace

size_t CountOf(const JsonValue& value) {
  constexpr size_t kGreatest = 1'000'000'000;
  const absl::StatusOr<std::string> plain = PlainDecimal(value.text);
  size_t count = 0;
  return plain.ok() && absl::SimpleAtoi(*plain, &count) ? std::min(count, kGreatest) : kGreatest;
}

bool IsNothing(const Demands& demands) {
  return std::any_of(demands.begin(), demands.end(),
                     [](const Demand& demand) { return demand.schema->IsBoolean(!demand.holds); });
}

absl::StatusOr<const std::vector<Case>*> SchemaCases::CasesOf(const Demands& demands) {
  DemandsKey key = KeyOf(demands);
  if (const auto found = known_.find(key); found != known_.end()) return found->second.get();
  if (in_work_.size() >= kMostInWork || !in_work_.insert(key).second) return InWork();
  absl::StatusOr<std::vector<Case>> cases = FindCases(demands);
  in_work_.erase(key);
  if (!cases.ok()) return cases.status();
  auto& kept = known_[std::move(key)];
  kept = std::make_unique<const std::vector<Case>>(*std::move(cases));
  return kept.get();
}

absl::StatusOr<std::vector<Case>> SchemaCases::FindCases(const Demands& demands) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Conjunct> conjuncts, splitter_.Split(demands));
  std::vector<Case> cases;
  for (const Conjunct& conjunct : conjuncts) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(100));
    if (conjunct.values != nullptr) {
      TANDEM_RETURN_IF_ERROR(AddValues(conjunct, &cases));
      continue;
    }
    TANDEM_RETURN_IF_ERROR(AddScalars(conjunct, &cases));
    if ((conjunct.types & SetOf(Type::kNumber)) != 0) TANDEM_RETURN_IF_ERROR(AddNumber(conjunct, &cases));
    if ((conjunct.types & SetOf(Type::kString)) != 0) TANDEM_RETURN_IF_ERROR(AddString(conjunct, &cases));
    if ((conjunct.types & SetOf(Type::kArray)) != 0) TANDEM_RETURN_IF_ERROR(AddArray(conjunct, &cases));
    if ((conjunct.types & SetOf(Type::kObject)) != 0) TANDEM_RETURN_IF_ERROR(AddObject(conjunct, &cases));
  }
  return cases;
}

absl::Status SchemaCases::AddValues(const Conjunct& conjunct, std::vector<Case>* cases) {
  std::vector<const JsonValue*> values;
  if (conjunct.is_const) values.push_back(conjunct.values);
  for (size_t i = 0; i < conjunct.values->items.size() && !conjunct.is_const; ++i) {
    values.push_back(&conjunct.values->items[i]);
  }
  for (const JsonValue* value : values) {
    bool meets = true;
    for (const Demand& demand : conjunct.demands) {
      TANDEM_ASSIGN_OR_RETURN(meets, Meets(*value, demand));
      if (!meets) break;
    }
    if (meets) cases->push_back(value);
  }
  return absl::OkStatus();
}

absl::Status SchemaCases::AddScalars(const Conjunct& conjunct, std::vector<Case>* cases) {
  if ((conjunct.types & SetOf(Type::kNull)) != 0) cases->push_back(&Null());
  if ((conjunct.types & SetOf(Type::kBoolean)) == 0) return absl::OkStatus();
  for (const bool value : {true, false}) {
    const bool excluded =
        std::any_of(conjunct.assertions.begin(), conjunct.assertions.end(), [&](const Assertion& assertion) {
          return assertion.kind == Kind::kIsNot && assertion.schema->IsBoolean(value);
        });
    if (!excluded) cases->push_back(&Boolean(value));
  }
  return absl::OkStatus();
}

absl::Status SchemaCases::AddNumber(const Conjunct& conjunct, std::vector<Case>* cases) {
  NumberCase number;
  const auto restrict_to = [&](const Language& language, bool holds) -> absl::Status {
    if (!number.numbers.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(number.numbers, AllNumbers(&budget_));
    }
    TANDEM_ASSIGN_OR_RETURN(number.numbers, holds ? Language::Intersect(*number.numbers, language, &budget_)
                                                  : Language::Subtract(*number.numbers, language, &budget_));
    return absl::OkStatus();
  };
  for (const Assertion& assertion : conjunct.assertions) {
    if (assertion.type != Type::kNumber) continue;
    if (assertion.kind == Kind::kInteger && assertion.holds) {
      number.whole = true;
      continue;
    }
    absl::Status status;
    if (assertion.kind == Kind::kInteger) {
      TANDEM_ASSIGN_OR_RETURN(const Language integers, Integers(&budget_));
      status = restrict_to(integers, false);
    } else if (assertion.kind == Kind::kIsNot) {
      absl::StatusOr<std::string> plain = PlainDecimal(assertion.schema->text);
      if (!plain.ok()) return At(assertion.place, plain.status());
      TANDEM_ASSIGN_OR_RETURN(const Language one, OneNumber(*plain, &budget_));
      status = restrict_to(one, false);
    } else {
      TANDEM_ASSIGN_OR_RETURN(const Language* const says,
                              LanguageOf(*assertion.schema, assertion.name, assertion.place));
      status = restrict_to(*says, assertion.holds);
    }
    if (!status.ok()) return At(assertion.place, status);
  }
  if (number.numbers.has_value() && number.whole) {
    TANDEM_ASSIGN_OR_RETURN(number.numbers, WithoutFraction(*number.numbers, &budget_));
  }
  if (!number.numbers.has_value() || !number.numbers->IsEmpty()) cases->push_back(std::move(number));
  return absl::OkStatus();
}

absl::Status SchemaCases::AddString(const Conjunct& conjunct, std::vector<Case>* cases) {
  StringCase string;
  CharacterRun& run = string.run;
  const auto restrict_to = [&](const Language& language, bool holds) -> absl::Status {
    if (!string.texts.has_value()) string.texts = Language::All();
    TANDEM_ASSIGN_OR_RETURN(string.texts, holds ? Language::Intersect(*string.texts, language, &budget_)
                                                : Language::Subtract(*string.texts, language, &budget_));
    return absl::OkStatus();
  };
  std::string run_place;
  for (const Assertion& assertion : conjunct.assertions) {
    if (assertion.type != Type::kString) continue;
    absl::Status status;
    if (assertion.kind == Kind::kIsNot) {
      TANDEM_ASSIGN_OR_RETURN(const Language one, Language::Texts({assertion.schema->text}, &budget_));
      status = restrict_to(one, false);
    } else if (assertion.name == "minLength" || assertion.name == "maxLength") {
      const size_t count = CountOf(*assertion.schema->Find(assertion.name));
      run_place = assertion.place;
      if ((assertion.name == "minLength") == assertion.holds) {
        run.least = std::max(run.least, count + (assertion.holds ? 0 : 1));
      } else if (!assertion.holds && count == 0) {
        return absl::OkStatus();
      } else {
        run.most = std::min(run.most, count - (assertion.holds ? 0 : 1));
      }
    } else {
      std::optional<CharacterRun> said;
      if (assertion.name == "pattern" && assertion.holds) {
        said = document_.PatternOf(assertion.schema->Find("pattern")->text).AsRun();
      }
      if (said.has_value()) {
        run.characters = Intersection(run.characters, said->characters);
        run.least = std::max(run.least, said->least);
        run.most = std::min(run.most, said->most);
        run_place = assertion.place;
        continue;
      }
      TANDEM_ASSIGN_OR_RETURN(const Language* const says,
                              LanguageOf(*assertion.schema, assertion.name, assertion.place));
      if (!says->IsAll() || !assertion.holds) status = restrict_to(*says, assertion.holds);
    }
    if (!status.ok()) return At(assertion.place, status);
  }
  if (run.characters.empty()) run.most = 0;
  if (run.least > run.most) return absl::OkStatus();
  if (string.texts.has_value() && !string.texts->IsEmpty()) {
    // Lengths that the texts have anyway need not be counted.
    const auto [shortest, longest] = string.texts->Lengths();
    const size_t least = shortest >= run.least ? 0 : run.least;
    const size_t most = longest <= run.most ? kNoLimit : run.most;
    if (least > 0 || most != kNoLimit || run.characters != AllCodePoints()) {
      absl::StatusOr<Language> runs = Language::Runs(run.characters, least, most, &budget_);
      if (!runs.ok()) return At(run_place, runs.status());
      if (const absl::Status status = restrict_to(*runs, true); !status.ok()) return At(run_place, status);
    }
  }
  if (!string.texts.has_value() || !string.texts->IsEmpty()) cases->push_back(std::move(string));
  return absl::OkStatus();
}

absl::StatusOr<Language> SchemaCases::MakeLanguage(const JsonValue& schema, const std::string& name) {
  const JsonValue& operand = *schema.Find(name);
  if (name == "format") {
    const std::optional<absl::string_view> pattern = PatternOfFormat(operand.text);
    if (!IsStandardFormat(operand.text)) return Language::All();
    if (!pattern.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("not supported, expected one of ", KnownFormats()));
    }
    TANDEM_ASSIGN_OR_RETURN(const Pattern parsed, Pattern::Parse(*pattern));
    return parsed.ToLanguage(&budget_);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string number, PlainDecimal(operand.text));
  if (name == "multipleOf") return MultiplesOf(number, &budget_);
  const bool is_least = absl::EndsWith(name, "inimum");
  // As draft 4 says that the number itself is left out.
  const JsonValue* const flag = schema.Find(is_least ? "exclusiveMinimum" : "exclusiveMaximum");
  const bool exclusive = absl::StartsWith(name, "exclusive") || (flag != nullptr && flag->IsBoolean(true));
  if (is_least) return NumbersFrom(number, exclusive, &budget_);
  TANDEM_ASSIGN_OR_RETURN(const Language all, AllNumbers(&budget_));
  TANDEM_ASSIGN_OR_RETURN(const Language above, NumbersFrom(number, !exclusive, &budget_));
  return Language::Subtract(all, above, &budget_);
}

absl::StatusOr<const Language*> SchemaCases::LanguageOf(const JsonValue& schema, const std::string& name,
                                                        const std::string& place) {
  if (name == "pattern") return PatternLanguage(schema.Find(name)->text, place);
  auto& language = languages_[{&schema, name}];
  if (language == nullptr) {
    absl::StatusOr<Language> made = MakeLanguage(schema, name);
    if (!made.ok()) return At(place, made.status());
    language = std::make_unique<const Language>(*std::move(made));
  }
  return language.get();
}

absl::StatusOr<const Language*> SchemaCases::PatternLanguage(const std::string& pattern,
                                                             const std::string& place) {
  auto& language = patterns_[pattern];
  if (language == nullptr) {
    absl::StatusOr<Language> made = document_.PatternOf(pattern).ToLanguage(&budget_);
    if (!made.ok()) return At(place, made.status());
    language = std::make_unique<const Language>(*std::move(made));
  }
  return language.get();
}

absl::StatusOr<bool> SchemaCases::IsSurelyEmpty(const Demands& demands) {
  if (IsNothing(demands)) return true;
  if (emptiness_depth_ >= kMostEmptinessDepth) return false;
  ++emptiness_depth_;
  const absl::StatusOr<bool> empty = HasNoCase(demands);
  --emptiness_depth_;
  return empty;
}

absl::StatusOr<bool> SchemaCases::HasNoCase(const Demands& demands) {
  const absl::StatusOr<const std::vector<Case>*> found = CasesOf(demands);
  // What is not supported together may still be possible.
  if (absl::IsResourceExhausted(found.status())) return found.status();
  if (!found.ok()) return false;
  for (const Case& one : **found) {
    bool empty = false;
    if (const auto* const object = std::get_if<ObjectCase>(&one)) {
      for (const ObjectCase::Member& member : object->members) {
        if (!member.required || empty) continue;
        TANDEM_ASSIGN_OR_RETURN(empty, IsSurelyEmpty(member.value));
      }
    } else if (const auto* const array = std::get_if<ArrayCase>(&one)) {
      const auto at = [](const auto& items, size_t i) -> const Demands& {
        return i < items.first.size() ? items.first[i] : items.rest;
      };
      for (size_t i = 0; i < std::min(array->least, array->first.size() + 1) && !empty; ++i) {
        TANDEM_ASSIGN_OR_RETURN(empty, IsSurelyEmpty(at(*array, i)));
        if (!empty || !array->some.has_value()) continue;
        TANDEM_ASSIGN_OR_RETURN(empty, IsSurelyEmpty(at(*array->some, i)));
      }
    }
    if (!empty) return false;
  }
  return true;
}

absl::StatusOr<std::optional<std::vector<JsonValue>>> SchemaCases::FiniteValues(const Demands& demands,
                                                                                size_t most) {
  absl::StatusOr<const std::vector<Case>*> found = CasesOf(demands);
  if (absl::IsFailedPrecondition(found.status())) return std::nullopt;
  if (!found.ok()) return found.status();
  std::vector<JsonValue> values;
  const auto add = [&](JsonValue value) {
    const auto same = [&](const JsonValue& other) { return AreEqual(value, other); };
    if (std::none_of(values.begin(), values.end(), same)) values.push_back(std::move(value));
  };
  for (const Case& one : **found) {
    TANDEM_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(100 + 100 * values.size())));
    if (const auto* const value = std::get_if<const JsonValue*>(&one)) {
      add(**value);
    } else if (const auto* const number = std::get_if<NumberCase>(&one);
               number != nullptr && number->numbers.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(const Language shortest, Shortest(*number->numbers, &budget_));
      const auto texts = shortest.TextsUpTo(most);
      if (!texts.has_value()) return std::nullopt;
      for (const std::string& text : *texts) add(JsonValue::OfNumber(text));
    } else if (const auto* const string = std::get_if<StringCase>(&one);
               string != nullptr && (string->texts.has_value() || string->run.most == 0)) {
      const auto texts = string->texts.has_value() ? string->texts->TextsUpTo(most)
                                                   : std::optional(std::vector<std::string>(1));
      if (!texts.has_value()) return std::nullopt;
      for (const std::string& text : *texts) add(JsonValue::OfText(text));
    } else {
      return std::nullopt;
    }
    if (values.size() > most) return std::nullopt;
  }
  return values;
}

absl::StatusOr<Language> SchemaCases::TextsOf(const Demands& demands) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Case>* const cases, CasesOf(demands));
  Language all;
  for (const Case& one : *cases) {
    Language texts;
    if (const auto* const value = std::get_if<const JsonValue*>(&one);
        value != nullptr && (*value)->Is(Type::kString)) {
      TANDEM_ASSIGN_OR_RETURN(texts, Language::Texts({(*value)->text}, &budget_));
    } else if (const auto* const string = std::get_if<StringCase>(&one)) {
      const CharacterRun& run = string->run;
      TANDEM_ASSIGN_OR_RETURN(texts, string->texts.has_value()
                                         ? absl::StatusOr<Language>(*string->texts)
                                         : Language::Runs(run.characters, run.least, run.most, &budget_));
    }
    TANDEM_ASSIGN_OR_RETURN(all, Language::Unite(all, texts, &budget_));
  }
  return all;
}

}  // namespace tandem
