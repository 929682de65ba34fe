#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tandem::router {

using Json = nlohmann::json;
// JSON whose objects keep the order of their members, because people read answers too.
using OrderedJson = nlohmann::ordered_json;

// Which error it is, by OpenAI's codes: as reasons of statuses (common/rpc/status.h), upper-case there.
inline constexpr absl::string_view kInvalidType = "INVALID_TYPE";
inline constexpr absl::string_view kInvalidValue = "INVALID_VALUE";
inline constexpr absl::string_view kMissingParameter = "MISSING_REQUIRED_PARAMETER";
inline constexpr absl::string_view kUnknownParameter = "UNKNOWN_PARAMETER";
inline constexpr absl::string_view kUnsupportedParameter = "UNSUPPORTED_PARAMETER";
inline constexpr absl::string_view kUnsupportedValue = "UNSUPPORTED_VALUE";

// The fields of a request that have no effect because nobody knows them (TenantConfig.unknown_fields), and
// the parts that nobody here can serve, such as tools that run at a provider.
class IgnoredFields {
 public:
  // Takes down a field by its path, such as "messages[0].cache_control".
  void Add(absl::string_view path);
  // The same of a part, such as "tools[2]".
  void LeaveOut(absl::string_view path);
  // The first part that was left out; empty if there is none.
  const std::string& left_out() const { return left_out_; }
  // The paths, as a header field lists them: "a, b.c". Of very many or long ones only the first.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string left_out_;
  bool full_ = false;
};

// The header field of an answer that names them.
inline constexpr char kIgnoredField[] = "X-Tandem-Ignored";

// A whole number, however it is written: 16 or 16.0. nullopt if it is none, or beyond 64 bits.
std::optional<int64_t> WholeNumber(const Json& value);
// A token's id, which is below 2^31.
std::optional<uint32_t> TokenIdOf(const Json& value);

// Reads the fields of a JSON object that a client sent. A field counts as known once it was read; Finish
// takes down the others in `ignored`, or, if that is null, refuses them by name. Errors are InvalidArgument,
// "field: what was found, what was expected"; the first one is kept. A field that is null counts as absent,
// as in OpenAI's API.
class JsonFields {
 public:
  // `object` and `ignored` outlive this.
  JsonFields(const Json& object, IgnoredFields* ignored);
  // An object within another one. `path`: a prefix for names, such as "stream_options.".
  JsonFields(const Json& object, const JsonFields& outer, std::string path)
      : JsonFields(object, outer.ignored_, std::move(path)) {}
  JsonFields(const Json& object, IgnoredFields* ignored, std::string path);

  // The field, or null if there is none.
  const Json* Find(absl::string_view name);
  std::optional<std::string> Text(absl::string_view name);
  std::optional<bool> Flag(absl::string_view name);
  std::optional<double> Number(absl::string_view name);
  // A whole number in [low, high].
  std::optional<int64_t> Integer(absl::string_view name, int64_t low, int64_t high);
  // 64 bits, signed or unsigned.
  std::optional<uint64_t> Bits(absl::string_view name);
  // A text that is one of these.
  std::optional<std::string> OneOf(absl::string_view name, const std::vector<absl::string_view>& choices);
  // Accepts the field, with any value and without effect.
  void Ignore(absl::string_view name) { Find(name); }
  // Accepts all of them, known or not.
  void IgnoreAll();
  // Accepts the field without effect, and takes it down: callers expect one.
  void IgnoreAloud(absl::string_view name);
  // Refuses the field unless it is absent, false, or equal to `harmless`.
  void Refuse(absl::string_view name, absl::string_view why, const Json& harmless = nullptr);

  // Records an error, if it is the first.
  void Fail(absl::string_view name, absl::string_view problem, absl::string_view reason = kInvalidValue);
  void FailType(absl::string_view name, const Json& found, absl::string_view expected);
  void Missing(absl::string_view name) { Fail(name, "missing", kMissingParameter); }
  void Update(const absl::Status& status);
  const absl::Status& status() const { return status_; }
  // The first error, or an error for a field that was not read.
  absl::Status Finish();

  // Of the fields that nobody knows; null: they are refused.
  IgnoredFields* ignored() const { return ignored_; }
  const std::string& path() const { return path_; }

 private:
  const Json& object_;
  const std::string path_;
  IgnoredFields* const ignored_;
  std::set<std::string, std::less<>> known_;
  absl::Status status_;
};

// Parses a body: one JSON object, of bounded depth. InvalidArgument otherwise.
absl::StatusOr<Json> ParseBody(absl::string_view body);

// A number of an answer: JSON has no infinity, so that -9999 stands for what is none, as in vLLM.
double FiniteNumber(float number);

}  // namespace tandem::router
