#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::router {

enum class HttpApi { kText, kChat, kResponses, kMessages };

// The names that fields of a GenerateRequest have in an API over HTTP, for errors. Whoever checks a request
// names fields as tandem.v1 does; clients are told the fields that they have sent:
//
//   stopping.max_tokens                        max_completion_tokens
//   chat.tools[2].parameters: #/items/pattern  tools[2].function.parameters.items.pattern
//
// There is a name for every field; readers record those that depend on the request (Set).
class FieldNames {
 public:
  explicit FieldNames(HttpApi api);

  // The field `ours`, with everything below it, is called `theirs` in this request.
  void Set(absl::string_view ours, absl::string_view theirs);
  // The output's form comes from the field `theirs`, whichever form it is.
  void SetConstraint(absl::string_view theirs);
  // The name of a field.
  std::string Of(absl::string_view ours) const;

  // An error in the client's terms.
  struct Error {
    std::optional<std::string> field;  // That it is about, if it is about one.
    std::string message;
  };
  Error Describe(const absl::Status& status) const;
  // The same of an error that has the client's names already.
  static Error AsTold(const absl::Status& status);

 private:
  std::string RenameMentions(absl::string_view text) const;

  std::map<std::string, std::string, std::less<>> names_;
};

}  // namespace tandem::router
