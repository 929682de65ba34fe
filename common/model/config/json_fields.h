#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"
#include "common/model/config/strict_json.h"

namespace tandem {

// Typed and bounded reading of the fields of one JSON object. A field that is absent or null reads as
// nothing; one of another type or outside the bounds is InvalidArgument: "PATH: field FIELD: found VALUE,
// expected ...".
//
// Refers to the object and the path, which must outlive it.
class JsonFields {
 public:
  // `prefix` stands in front of field names in messages: "rope_scaling." for a nested object.
  JsonFields(const nlohmann::json& object, absl::string_view path, absl::string_view prefix = "")
      : object_(object), path_(path), prefix_(prefix) {}

  // An object that stands in the field `name`.
  JsonFields Inner(const nlohmann::json& object, absl::string_view name) const;

  // Whether the object names the field, be it as null.
  bool Has(absl::string_view name) const { return object_.contains(std::string(name)); }

  // nullptr when absent or null.
  const nlohmann::json* Find(absl::string_view name) const;

  absl::StatusOr<std::optional<int32_t>> Int(absl::string_view name, int32_t least, int32_t most) const;
  absl::StatusOr<int32_t> IntOr(absl::string_view name, int32_t least, int32_t most, int32_t absent) const;
  absl::StatusOr<int32_t> RequiredInt(absl::string_view name, int32_t least, int32_t most) const;
  absl::StatusOr<std::optional<double>> Number(absl::string_view name, double least, double most) const;
  absl::StatusOr<double> NumberOr(absl::string_view name, double least, double most, double absent) const;
  absl::StatusOr<bool> BoolOr(absl::string_view name, bool absent) const;
  absl::StatusOr<std::optional<std::string>> String(absl::string_view name) const;
  // A token id or a list of at most 64.
  absl::StatusOr<TokenIds> Tokens(absl::string_view name) const;

  absl::Status Unexpected(absl::string_view name, absl::string_view expected) const;
  absl::Status Unsupported(absl::string_view name, absl::string_view supported) const;

 private:
  std::string Describe(absl::string_view name, absl::string_view expectation,
                       absl::string_view expected) const;

  const nlohmann::json& object_;
  const absl::string_view path_;
  const std::string prefix_;
};

}  // namespace tandem
