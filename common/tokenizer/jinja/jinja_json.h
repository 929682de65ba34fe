#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/jinja/jinja_builtins.h"
#include "common/tokenizer/jinja/jinja_value.h"

namespace tandem {

// What json.dumps takes.
struct JinjaJsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // Of one level; without it, one line.
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

absl::StatusOr<std::string> JinjaToJson(const JinjaValue& value, const JinjaJsonStyle& style,
                                        JinjaBudget& budget);

// The filter tojson with transformers' arguments: ensure_ascii, indent, separators, sort_keys.
absl::StatusOr<JinjaValue> JinjaToJsonFilter(const JinjaValue& value, const JinjaArguments& arguments,
                                             JinjaBudget& budget);

}  // namespace tandem
