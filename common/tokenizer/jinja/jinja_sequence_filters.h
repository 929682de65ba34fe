#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_builtins.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

using JinjaFilter = absl::StatusOr<JinjaValue> (*)(const JinjaValue&, const JinjaArguments&, JinjaBudget&);

// Jinja's filters that order, group and add up sequences, and those for numbers: sort, unique, groupby,
// dictsort, min, max, sum, float, round, abs, indent.
const absl::flat_hash_map<absl::string_view, JinjaFilter>& JinjaSequenceFilters();

// The member of `value` at a path such as "function.name" or "0.id", as filters take for `attribute`; the
// value itself for none. `fallback`, unless null or none, stands for each part of the path that is not there.
absl::StatusOr<JinjaValue> JinjaMemberAt(const JinjaValue& value, const JinjaValue& path, JinjaBudget& budget,
                                         const JinjaValue* fallback = nullptr);

}  // namespace tandem
