#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

// The arguments of a call, evaluated.
struct JinjaArguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;

  // The argument at `index` or with that name; null when it was not given.
  const JinjaValue* Find(size_t index, absl::string_view name) const;
  // Whether that argument was given, and is true.
  bool IsSet(size_t index, absl::string_view name) const {
    const JinjaValue* given = Find(index, name);
    return given != nullptr && given->IsTrue();
  }
};

// `value | name(arguments)`. Unimplemented for filters that are not known.
absl::StatusOr<JinjaValue> ApplyJinjaFilter(absl::string_view name, const JinjaValue& value,
                                            const JinjaArguments& arguments, JinjaBudget& budget);

// `value is name(arguments)`. Unimplemented for tests that are not known.
absl::StatusOr<bool> ApplyJinjaTest(absl::string_view name, const JinjaValue& value,
                                    const JinjaArguments& arguments, JinjaBudget& budget);

// Whether values of this type have a method of that name, which leaves them unchanged.
bool HasJinjaMethod(const JinjaValue& self, absl::string_view name);
absl::StatusOr<JinjaValue> CallJinjaMethod(const JinjaValue& self, absl::string_view name,
                                           const JinjaArguments& arguments, JinjaBudget& budget);

// `value.name` (a member or a method) and `value[key]`; an undefined value if there is none.
absl::StatusOr<JinjaValue> JinjaAttribute(const JinjaValue& value, const std::string& name,
                                          JinjaBudget& budget);
absl::StatusOr<JinjaValue> JinjaItem(const JinjaValue& value, const JinjaValue& key, JinjaBudget& budget);

}  // namespace tandem
