#include "router/http/openai_json.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem::router {

JsonFields::JsonFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_.empty() ? "body" : path_.substr(0, path_.size() - 1), ": expected an object"));
  }
}

const Json* JsonFields::Find(absl::string_view name) {
  known_.emplace(name);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(absl::string_view name, absl::string_view problem) {
  Update(absl::InvalidArgumentError(absl::StrCat(path_, name, ": ", problem)));
}

void JsonFields::Update(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

std::optional<std::string> JsonFields::Text(absl::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(name, absl::StrCat("found ", PrintableValue(*value), ", expected a string"));
  return std::nullopt;
}

std::optional<bool> JsonFields::Flag(absl::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, absl::StrCat("found ", PrintableValue(*value), ", expected true or false"));
  return std::nullopt;
}

std::optional<double> JsonFields::Number(absl::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  Fail(name, absl::StrCat("found ", PrintableValue(*value), ", expected a number"));
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(absl::string_view name, int64_t low, int64_t high) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(high);
  if (value->is_number_integer() && !too_large) {
    const auto number = value->get<int64_t>();
    if (number >= low && number <= high) return number;
  }
  Fail(name,
       absl::StrCat("found ", PrintableValue(*value), ", expected a whole number from ", low, " to ", high));
  return std::nullopt;
}

void JsonFields::Refuse(absl::string_view name, absl::string_view why, const Json& harmless) {
  const Json* const value = Find(name);
  if (value == nullptr || *value == false || (!harmless.is_null() && *value == harmless)) return;
  Fail(name, why);
}

absl::Status JsonFields::Finish() {
  TANDEM_RETURN_IF_ERROR(status_);
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, PrintableText(name),
                       ": there is no such field; docs/reference/http.md lists the supported ones"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseBody(absl::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(Json json,
                          ParseStrictJson(body, "body", 0, {.max_depth = 64, .max_values = 1'000'000}));
  if (!json.is_object()) return absl::InvalidArgumentError("body: expected a JSON object");
  return json;
}

}  // namespace tandem::router
