#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

struct JinjaToken {
  enum class Kind {
    kText,  // output as it is; only outside tags
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // the last token
  };
  Kind kind;
  std::string text;  // a string's value, unescaped; else as written
  int64_t integer = 0;
  double number = 0;
  int line = 1;
};

// Cuts a template into tokens. Blank lines are treated as transformers sets Jinja up: trim_blocks,
// lstrip_blocks, one newline at the end dropped. InvalidArgument with the line for what is malformed.
absl::StatusOr<std::vector<JinjaToken>> TokenizeJinja(absl::string_view source);

// What Python's str.strip() strips.
bool IsPythonSpace(uint32_t code_point);

}  // namespace tandem
