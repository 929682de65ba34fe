#include "router/http/openai_json.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"

namespace tandem::router {
namespace {

// Of a header field, which clients bound.
constexpr size_t kMostIgnoredBytes = 1024;
constexpr size_t kMostPathBytes = 128;

// What a header field can hold, and what does not look like a list.
bool IsPlain(char c) {
  return c > ' ' && c < 127 && c != ',' && c != '"' && c != '\\';
}

// A double that is a whole number has no fraction, and fits if it is within the borders of the type, of which
// the upper one is a power of two.
bool IsWhole(double number, double low, double end) {
  return number >= low && number < end && number == std::floor(number);
}

// What keeps the order of members looks, for each of them, at those in front of it. 10,000 members of one
// object make so many looks.
constexpr size_t kMostLooks = 50'000'000;

// How many looks there are in all.
size_t NumLooks(const Json& value) {
  size_t looks = value.is_object() ? value.size() * (value.size() - 1) / 2 : 0;
  if (!value.is_structured()) return looks;
  for (const Json& inner : value) looks += inner.is_structured() ? NumLooks(inner) : 0;
  return looks;
}

constexpr double kTwoTo63 = 9223372036854775808.0;

}  // namespace

void IgnoredFields::Add(absl::string_view path) {
  if (full_) return;
  std::string shown(path.substr(0, kMostPathBytes));
  for (char& c : shown) {
    if (!IsPlain(c)) c = '?';
  }
  if (text_.size() + shown.size() + 2 > kMostIgnoredBytes) {
    full_ = true;
    shown = "...";
  }
  absl::StrAppend(&text_, text_.empty() ? "" : ", ", shown);
}

void IgnoredFields::LeaveOut(absl::string_view path) {
  if (left_out_.empty()) left_out_ = std::string(path);
  Add(path);
}

std::optional<int64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float() || !IsWhole(value.get<double>(), -kTwoTo63, kTwoTo63)) return std::nullopt;
  return static_cast<int64_t>(value.get<double>());
}

std::optional<uint32_t> TokenIdOf(const Json& value) {
  const std::optional<int64_t> id = WholeNumber(value);
  if (!id.has_value() || *id < 0 || *id > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return static_cast<uint32_t>(*id);
}

JsonFields::JsonFields(const Json& object, IgnoredFields* ignored) : object_(object), ignored_(ignored) {
  if (!object.is_object()) status_ = absl::InvalidArgumentError("body: expected a JSON object");
}

JsonFields::JsonFields(const Json& object, IgnoredFields* ignored, std::string path)
    : object_(object), path_(std::move(path)), ignored_(ignored) {
  if (object.is_object()) return;
  status_ = WithReason(
      absl::InvalidArgumentError(absl::StrCat(path_.substr(0, path_.size() - 1), ": expected an object")),
      kInvalidType);
}

const Json* JsonFields::Find(absl::string_view name) {
  known_.emplace(name);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(absl::string_view name, absl::string_view problem, absl::string_view reason) {
  Update(WithReason(absl::InvalidArgumentError(absl::StrCat(path_, name, ": ", problem)), reason));
}

void JsonFields::FailType(absl::string_view name, const Json& found, absl::string_view expected) {
  Fail(name, absl::StrCat("found ", PrintableValue(found), ", expected ", expected), kInvalidType);
}

void JsonFields::Update(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

std::optional<std::string> JsonFields::Text(absl::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  FailType(name, *value, "a string");
  return std::nullopt;
}

std::optional<bool> JsonFields::Flag(absl::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  FailType(name, *value, "true or false");
  return std::nullopt;
}

std::optional<double> JsonFields::Number(absl::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  FailType(name, *value, "a number");
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(absl::string_view name, int64_t low, int64_t high) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = WholeNumber(*value);
  if (number.has_value() && *number >= low && *number <= high) return number;
  Fail(name,
       absl::StrCat("found ", PrintableValue(*value), ", expected a whole number from ", low, " to ", high),
       value->is_number() ? kInvalidValue : kInvalidType);
  return std::nullopt;
}

std::optional<uint64_t> JsonFields::Bits(absl::string_view name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (const std::optional<int64_t> number = WholeNumber(*value)) return static_cast<uint64_t>(*number);
  if (value->is_number_float() && IsWhole(value->get<double>(), 0, 2 * kTwoTo63))
    return static_cast<uint64_t>(value->get<double>());
  Fail(name,
       absl::StrCat("found ", PrintableValue(*value), ", expected a whole number from ",
                    std::numeric_limits<int64_t>::min(), " to ", std::numeric_limits<uint64_t>::max()),
       value->is_number() ? kInvalidValue : kInvalidType);
  return std::nullopt;
}

std::optional<std::string> JsonFields::OneOf(absl::string_view name,
                                             const std::vector<absl::string_view>& choices) {
  std::optional<std::string> text = Text(name);
  if (!text.has_value()) return text;
  for (const absl::string_view choice : choices) {
    if (*text == choice) return text;
  }
  Fail(name,
       absl::StrCat("found \"", PrintableText(*text), "\", expected one of ", absl::StrJoin(choices, ", ")));
  return std::nullopt;
}

void JsonFields::IgnoreAll() {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) known_.insert(name);
}

void JsonFields::IgnoreAloud(absl::string_view name) {
  if (Find(name) != nullptr && ignored_ != nullptr) ignored_->Add(absl::StrCat(path_, name));
}

void JsonFields::Refuse(absl::string_view name, absl::string_view why, const Json& harmless) {
  const Json* const value = Find(name);
  if (value == nullptr || *value == false || (!harmless.is_null() && *value == harmless)) return;
  // An empty list or object, whichever of the two the field has, asks for nothing.
  if (harmless.is_object() && value->is_structured() && value->empty()) return;
  Fail(name, why, kUnsupportedParameter);
}

absl::Status JsonFields::Finish() {
  TANDEM_RETURN_IF_ERROR(status_);
  for (const auto& [name, value] : object_.items()) {
    // What is null counts as absent; a field that nobody knows may be a misspelt one all the same.
    if (known_.contains(name) || (value.is_null() && ignored_ != nullptr)) continue;
    if (ignored_ != nullptr) {
      ignored_->Add(absl::StrCat(path_, name));
      continue;
    }
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          path_, PrintableText(name),
                          ": there is no such field; docs/reference/http.md lists the supported ones")),
                      kUnknownParameter);
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseBody(absl::string_view body) {
  absl::StatusOr<Json> parsed = ParseStrictJson(body, "body", 0, {.max_depth = 64, .max_values = 1'000'000});
  if (!parsed.ok()) {
    // A field of a body goes by its own name.
    absl::string_view message = parsed.status().message();
    const bool is_json =
        !absl::StartsWith(message, "body: byte ") && !absl::StartsWith(message, "body: not JSON");
    if (is_json) absl::ConsumePrefix(&message, "body: ");
    return WithReason(absl::InvalidArgumentError(message), kInvalidValue);
  }
  Json json = *std::move(parsed);
  if (!json.is_object()) return absl::InvalidArgumentError("body: expected a JSON object");
  if (NumLooks(json) > kMostLooks)
    return absl::InvalidArgumentError("body: objects with too many members, expected at most 10,000 in one");
  return json;
}

double FiniteNumber(float number) {
  return std::isfinite(number) ? static_cast<double>(number) : -9999.0;
}

}  // namespace tandem::router
