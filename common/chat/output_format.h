#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem {

// How a model's output marks calls of functions.
enum class CallSyntax {
  kNone,      // Not at all.
  kHermes,    // <tool_call>{"name": "f", "arguments": {}}</tool_call>, as Hermes and Qwen.
  kLlama,     // {"name": "f", "parameters": {}}, with or without <|python_tag|> in front; ";" between two.
  kMistral,   // [TOOL_CALLS][{"name": "f", "arguments": {}}], or [TOOL_CALLS]f[ARGS]{} for each: both are
              // read.
  kDeepSeek,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>,
              // or with "function" for f, and f and a fence around the arguments behind the separator.
  kJson,      // {"name": "f", "arguments": {}}, or a list of these, and nothing else.
};

struct OutputFormat {
  CallSyntax calls = CallSyntax::kJson;
  // For kDeepSeek: the arguments are in a fence, as in V3 and R1, but not V3.1.
  bool fenced = false;
  // For kMistral: forced calls use the second form, as in templates that know [ARGS].
  bool marks_arguments = false;
  // Whether the model's reasoning is between <think> and </think>.
  bool reasons = false;

  bool operator==(const OutputFormat&) const = default;
};

// The output format of a chat template, by the marks in its text:
//
//   tool▁call▁begin             DeepSeek, with fences where it has "```json"
//   [TOOL_CALLS]                Mistral, with marked arguments where it has [ARGS]
//   <tool_call>                 Hermes; but none where <function= or <arg_key> say that calls are no JSON
//   <|python_tag|>, ipython     Llama
//   none of these               JSON
//   </think>                    reasoning
OutputFormat FindOutputFormat(absl::string_view chat_template);

// "hermes", "llama", "mistral", "mistral-args", "deepseek", "deepseek-fenced", "json" or "none", each
// followed by "+think" if the model reasons. InvalidArgument for other names, with these.
absl::StatusOr<OutputFormat> OutputFormatOf(absl::string_view name);
std::string NameOf(const OutputFormat& format);

// The text around the arguments of a forced call.
struct CallFrame {
  std::string trigger;  // The beginning of `begin` that no free text has.
  std::string begin;    // Up to the arguments.
  std::string end;      // Behind them; may be empty.
};
// `format.calls` must not be kNone. The name must not contain characters that JSON escapes.
CallFrame FrameOfCall(const OutputFormat& format, absl::string_view name);

// The texts that begin calls, for which an output is searched.
absl::Span<const absl::string_view> CallMarks(CallSyntax syntax);

inline constexpr absl::string_view kReasoningBegin = "<think>";
inline constexpr absl::string_view kReasoningEnd = "</think>";

}  // namespace tandem
