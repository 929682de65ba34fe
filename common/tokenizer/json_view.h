#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tandem {

// A place in a JSON document that came from outside. Every accessor checks the type, and every error names
// the file and the path, as in `tokenizer.json: $.model.merges[3]: ...`. Views share the document, so they
// stay valid on their own.
class JsonView {
 public:
  // Parses `text`; nesting deeper than 64 levels is refused. `file` is what errors call it.
  static absl::StatusOr<JsonView> Parse(absl::string_view text, std::string file);

  // A document that was not parsed from text. Readers of views expect at most 64 levels.
  static JsonView Of(nlohmann::json document, std::string file);

  const nlohmann::json& value() const { return *value_; }
  // The view of a child that the caller found in value(); `step` is added to the path, such as "[3]".
  JsonView At(const nlohmann::json& value, absl::string_view step) const;
  absl::Status Invalid(absl::string_view message) const;
  absl::Status Unsupported(absl::string_view message) const;

  // A member of this object. Find returns nullopt if it is absent or null.
  absl::StatusOr<JsonView> Member(const std::string& name) const;
  absl::StatusOr<std::optional<JsonView>> Find(const std::string& name) const;
  // The elements of this array.
  absl::StatusOr<std::vector<JsonView>> Elements() const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<bool> Bool() const;
  // An integer between the two bounds, both included.
  absl::StatusOr<int64_t> Integer(int64_t low, int64_t high) const;

  absl::StatusOr<std::string> StringMember(const std::string& name) const;
  absl::StatusOr<bool> BoolMember(const std::string& name, bool if_absent) const;

 private:
  JsonView(std::shared_ptr<const nlohmann::json> document, const nlohmann::json* value, std::string file,
           std::string path)
      : document_(std::move(document)), value_(value), file_(std::move(file)), path_(std::move(path)) {}

  std::shared_ptr<const nlohmann::json> document_;
  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace tandem
