#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/language.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {

// Sets of numbers, as the texts that spell them in plain decimals: "0", "-12.50"; no exponents, no "-0". A
// set has all spellings of a number or none, so that sets of texts behave as sets of numbers.

// `text`, a number of JSON, in plain decimals without needless zeros. InvalidArgument if it is longer than
// 400 digits.
absl::StatusOr<std::string> PlainDecimal(absl::string_view text);

absl::StatusOr<Language> AllNumbers(WorkBudget* budget);
absl::StatusOr<Language> Integers(WorkBudget* budget);
// At least `bound`, or greater. Here and below numbers are as PlainDecimal has them.
absl::StatusOr<Language> NumbersFrom(absl::string_view bound, bool exclusive, WorkBudget* budget);
// `divisor`: above 0. InvalidArgument if it has too many digits.
absl::StatusOr<Language> MultiplesOf(absl::string_view divisor, WorkBudget* budget);
absl::StatusOr<Language> OneNumber(absl::string_view number, WorkBudget* budget);
// The spellings without fraction: one for each integer.
absl::StatusOr<Language> WithoutFraction(const Language& numbers, WorkBudget* budget);
// The shortest spelling of each number.
absl::StatusOr<Language> Shortest(const Language& numbers, WorkBudget* budget);

}  // namespace tandem
