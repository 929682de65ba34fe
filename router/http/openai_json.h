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
// JSON whose objects keep the order of their members, because people read answers too.
using OrderedJson = nlohmann::ordered_json;

// Reads the fields of a JSON object that a client sent. A field counts as known once it was read; Finish
// refuses the others by name. Errors are InvalidArgument, "field: what was found, what was expected"; the
// first one is kept. A field that is null counts as absent, as in OpenAI's API.
class JsonFields {
 public:
  // `path`: a prefix for names in messages, such as "stream_options.". `object` outlives this.
  JsonFields(const Json& object, std::string path = "");

  // The field, or null if there is none.
  const Json* Find(absl::string_view name);
  std::optional<std::string> Text(absl::string_view name);
  std::optional<bool> Flag(absl::string_view name);
  std::optional<double> Number(absl::string_view name);
  // A whole number in [low, high].
  std::optional<int64_t> Integer(absl::string_view name, int64_t low, int64_t high);
  // Accepts the field, with any value and without effect.
  void Ignore(absl::string_view name) { Find(name); }
  // Refuses the field unless it is absent, false, or equal to `harmless`.
  void Refuse(absl::string_view name, absl::string_view why, const Json& harmless = nullptr);

  // Records an error, if it is the first.
  void Fail(absl::string_view name, absl::string_view problem);
  void Update(const absl::Status& status);
  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }
  // The first error, or an error for a field that was not read.
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
