#include "common/chat/output_format.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

constexpr absl::string_view kThinkSuffix = "+think";

struct NamedFormat {
  const char* name;
  CallSyntax calls;
  bool fenced = false;
  bool marks_arguments = false;
};
constexpr NamedFormat kFormats[] = {
    {"hermes", CallSyntax::kHermes},     {"llama", CallSyntax::kLlama},
    {"mistral", CallSyntax::kMistral},   {"mistral-args", CallSyntax::kMistral, false, true},
    {"deepseek", CallSyntax::kDeepSeek}, {"deepseek-fenced", CallSyntax::kDeepSeek, true},
    {"json", CallSyntax::kJson},         {"none", CallSyntax::kNone},
};

constexpr absl::string_view kHermesMarks[] = {"<tool_call>"};
constexpr absl::string_view kLlamaMarks[] = {"<|python_tag|>"};
constexpr absl::string_view kMistralMarks[] = {"[TOOL_CALLS]"};
constexpr absl::string_view kDeepSeekMarks[] = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"};

}  // namespace

OutputFormat FindOutputFormat(absl::string_view chat_template) {
  const auto has = [chat_template](absl::string_view mark) { return absl::StrContains(chat_template, mark); };
  OutputFormat format{.reasons = has(kReasoningEnd)};
  if (has("tool▁call▁begin")) {
    format.calls = CallSyntax::kDeepSeek;
    format.fenced = has("```json");
  } else if (has("[TOOL_CALLS]")) {
    format.calls = CallSyntax::kMistral;
    format.marks_arguments = has("[ARGS]");
  } else if (has("<tool_call>")) {
    format.calls = has("<function=") || has("<arg_key>") ? CallSyntax::kNone : CallSyntax::kHermes;
  } else if (has("<|python_tag|>") || has("ipython")) {
    format.calls = CallSyntax::kLlama;
  }
  return format;
}

absl::StatusOr<OutputFormat> OutputFormatOf(absl::string_view name) {
  absl::string_view calls = name;
  const bool reasons = absl::ConsumeSuffix(&calls, kThinkSuffix);
  std::string known;
  for (const NamedFormat& format : kFormats) {
    if (calls == format.name)
      return OutputFormat{.calls = format.calls,
                          .fenced = format.fenced,
                          .marks_arguments = format.marks_arguments,
                          .reasons = reasons};
    absl::StrAppend(&known, known.empty() ? "" : ", ", format.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected one of ", known, ", each with ", kThinkSuffix, " behind it or not"));
}

std::string NameOf(const OutputFormat& format) {
  for (const NamedFormat& named : kFormats) {
    if (named.calls == format.calls && named.fenced == format.fenced &&
        named.marks_arguments == format.marks_arguments)
      return absl::StrCat(named.name, format.reasons ? kThinkSuffix : "");
  }
  return "none";
}

CallFrame FrameOfCall(const OutputFormat& format, absl::string_view name) {
  const std::string object = absl::StrCat(R"({"name": ")", name, R"(", ")");
  switch (format.calls) {
    case CallSyntax::kHermes:
      return {"<tool_call>", absl::StrCat("<tool_call>\n", object, R"(arguments": )"), "}\n</tool_call>"};
    case CallSyntax::kMistral:
      if (format.marks_arguments) return {"[TOOL_CALLS]", absl::StrCat("[TOOL_CALLS]", name, "[ARGS]"), ""};
      return {"[TOOL_CALLS]", absl::StrCat("[TOOL_CALLS][", object, R"(arguments": )"), "}]"};
    case CallSyntax::kDeepSeek: {
      const absl::string_view begin = "<｜tool▁calls▁begin｜>";
      const absl::string_view call = "<｜tool▁call▁begin｜>";
      const absl::string_view end = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
      if (!format.fenced)
        return {std::string(begin), absl::StrCat(begin, call, name, "<｜tool▁sep｜>"), std::string(end)};
      return {std::string(begin), absl::StrCat(begin, call, "function<｜tool▁sep｜>", name, "\n```json\n"),
              absl::StrCat("\n```", end)};
    }
    case CallSyntax::kLlama:
      return {R"({"name": ")", absl::StrCat(object, R"(parameters": )"), "}"};
    case CallSyntax::kJson:
    case CallSyntax::kNone:
      break;
  }
  return {R"({"name": ")", absl::StrCat(object, R"(arguments": )"), "}"};
}

absl::Span<const absl::string_view> CallMarks(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::kHermes:
      return kHermesMarks;
    case CallSyntax::kLlama:
      return kLlamaMarks;
    case CallSyntax::kMistral:
      return kMistralMarks;
    case CallSyntax::kDeepSeek:
      return kDeepSeekMarks;
    case CallSyntax::kJson:
    case CallSyntax::kNone:
      break;
  }
  return {};
}

}  // namespace tandem
