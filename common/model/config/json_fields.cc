#include "common/model/config/json_fields.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

using Json = nlohmann::json;

namespace {

constexpr size_t kMaxTokens = 64;

std::optional<int32_t> BoundedInt(const Json& value, int32_t least, int32_t most) {
  // Values above the signed range are kept unsigned by the parser, so both forms are looked at.
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (most < 0 || number > static_cast<uint64_t>(most)) return std::nullopt;
    if (least > 0 && number < static_cast<uint64_t>(least)) return std::nullopt;
    return static_cast<int32_t>(number);
  }
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.get<int64_t>();
  if (number < least || number > most) return std::nullopt;
  return static_cast<int32_t>(number);
}

}  // namespace

const Json* JsonFields::Find(absl::string_view name) const {
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

JsonFields JsonFields::Inner(const nlohmann::json& object, absl::string_view name) const {
  return JsonFields(object, path_, absl::StrCat(prefix_, name, "."));
}

std::string JsonFields::Describe(absl::string_view name, absl::string_view expectation,
                                 absl::string_view expected) const {
  const Json* const value = Find(name);
  return absl::StrCat(path_, ": field ", prefix_, name, ": found ",
                      value == nullptr ? "nothing" : PrintableValue(*value), ", ", expectation, " ",
                      expected);
}

absl::Status JsonFields::Unexpected(absl::string_view name, absl::string_view expected) const {
  return absl::InvalidArgumentError(Describe(name, "expected", expected));
}

absl::Status JsonFields::Unsupported(absl::string_view name, absl::string_view supported) const {
  return absl::UnimplementedError(Describe(name, "supported:", supported));
}

absl::StatusOr<std::optional<int32_t>> JsonFields::Int(absl::string_view name, int32_t least,
                                                       int32_t most) const {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int32_t> number = BoundedInt(*value, least, most);
  if (!number.has_value()) {
    return Unexpected(name, absl::StrCat("a whole number from ", least, " to ", most));
  }
  return number;
}

absl::StatusOr<int32_t> JsonFields::IntOr(absl::string_view name, int32_t least, int32_t most,
                                          int32_t absent) const {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int32_t> number, Int(name, least, most));
  return number.value_or(absent);
}

absl::StatusOr<int32_t> JsonFields::RequiredInt(absl::string_view name, int32_t least, int32_t most) const {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int32_t> number, Int(name, least, most));
  if (number.has_value()) return *number;
  return Unexpected(name, absl::StrCat("a whole number from ", least, " to ", most));
}

absl::StatusOr<std::optional<double>> JsonFields::Number(absl::string_view name, double least,
                                                         double most) const {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= least && number <= most) return number;
  }
  return Unexpected(name, absl::StrCat("a number from ", least, " to ", most));
}

absl::StatusOr<double> JsonFields::NumberOr(absl::string_view name, double least, double most,
                                            double absent) const {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<double> number, Number(name, least, most));
  return number.value_or(absent);
}

absl::StatusOr<bool> JsonFields::BoolOr(absl::string_view name, bool absent) const {
  const Json* const value = Find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return Unexpected(name, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> JsonFields::String(absl::string_view name) const {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Unexpected(name, "a string");
  return value->get<std::string>();
}

absl::StatusOr<TokenIds> JsonFields::Tokens(absl::string_view name) const {
  const Json* const value = Find(name);
  TokenIds tokens;
  if (value == nullptr) return tokens;
  const auto add = [&tokens](const Json& element) {
    const std::optional<int32_t> token = BoundedInt(element, 0, std::numeric_limits<int32_t>::max());
    if (token.has_value()) tokens.push_back(*token);
    return token.has_value();
  };
  bool valid = true;
  if (value->is_array()) {
    valid = value->size() <= kMaxTokens;
    for (size_t i = 0; valid && i < value->size(); ++i) valid = add((*value)[i]);
  } else {
    valid = add(*value);
  }
  if (!valid) return Unexpected(name, absl::StrCat("a token id or a list of at most ", kMaxTokens));
  return tokens;
}

}  // namespace tandem
