#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tandem::router {

using Json = nlohmann::json;
// Its objects keep the order in which members were added, as answers are read by people too.
using OrderedJson = nlohmann::ordered_json;

// The fields of a JSON object that a client sent. What has been asked for counts as known; Finish refuses the
// rest by name. Every error is InvalidArgument, "field: what was found, what was expected", and the first one
// is kept; a field that is null counts as absent, as in OpenAI's API.
class JsonFields {
 public:
  // `path` is put in front of names in messages: "stream_options.". `object` outlives this.
  JsonFields(const Json& object, std::string path = "");

  // The field, or null when there is none.
  const Json* Find(absl::string_view name);
  std::optional<std::string> Text(absl::string_view name);
  std::optional<bool> Flag(absl::string_view name);
  std::optional<double> Number(absl::string_view name);
  // A whole number in [low, high].
  std::optional<int64_t> Integer(absl::string_view name, int64_t low, int64_t high);
  // Known, and without effect here whatever it says.
  void Ignore(absl::string_view name) { Find(name); }
  // Known, and refused unless it is absent, false, or equal to `harmless`.
  void Refuse(absl::string_view name, absl::string_view why, const Json& harmless = nullptr);

  // Keeps the error, if it is the first.
  void Fail(absl::string_view name, absl::string_view problem);
  void Update(const absl::Status& status);
  const absl::Status& status() const { return status_; }
  // The first error, or that there is a field nobody asked for.
  absl::Status Finish();

 private:
  const Json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> known_;
  absl::Status status_;
};

// Parses a body: one JSON object, of bounded depth. InvalidArgument otherwise.
absl::StatusOr<Json> ParseBody(absl::string_view body);

}  // namespace tandem::router
