#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/json_value.h"
#include "common/grammar/schema/pattern.h"
#include "common/grammar/schema/references.h"

namespace tandem {

// A schema of JSON Schema 2020-12, read and looked through: every keyword in each schema that counts is known
// and has a value of its form, references lead to schemas, and no schema is part of itself.
class SchemaDocument {
 public:
  // InvalidArgument names the place as a JSON pointer: "#/properties/a/pattern: byte 2: ...".
  static absl::StatusOr<std::unique_ptr<const SchemaDocument>> Read(absl::string_view text, size_t max_depth);

  const JsonValue& root() const { return root_; }
  // Where a `$ref` leads, by its value in a schema that counts.
  const SchemaPlace& Target(const JsonValue& reference) const { return targets_.at(&reference); }
  // Of a `pattern` or of the name of a member of `patternProperties`.
  const Pattern& PatternOf(const std::string& text) const { return patterns_.at(text); }

 private:
  friend class SchemaReader;

  JsonValue root_;
  std::map<const JsonValue*, SchemaPlace> targets_;
  std::map<std::string, Pattern> patterns_;
};

// What a schema says of the items of lists, and where: in `prefixItems` and `items`, or as drafts before
// 2020-12 have it, in a list of `items` and in `additionalItems`.
struct ListItems {
  const JsonValue* first = nullptr;  // Schemas for the first items, if it has such a list.
  absl::string_view first_name;
  const JsonValue* rest = nullptr;  // For those behind them.
  absl::string_view rest_name;
};
ListItems ItemsOf(const JsonValue& schema);

// A place below another one.
std::string Below(absl::string_view place, absl::string_view name);
// "PLACE: what".
absl::Status InvalidAt(absl::string_view place, absl::string_view what);
// Puts a place in front of an error that has none.
absl::Status At(absl::string_view place, const absl::Status& status);

}  // namespace tandem
