// What a model writes, parsed into content, reasoning and calls: the pieces do not depend on where the output
// is cut.

#include <array>

#include "absl/strings/str_cat.h"
#include "common/chat/output_format.h"
#include "common/chat/output_parser.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr std::array kOutputFormats = {"hermes",   "llama",           "mistral", "mistral-args",
                                       "deepseek", "deepseek-fenced", "json",    "none"};
constexpr size_t kMostHeldBytes = 300;

// Pieces of one kind that follow one another become one.
void AppendDeltas(std::vector<OutputDelta> pieces, std::vector<OutputDelta>& all) {
  for (OutputDelta& piece : pieces) {
    if (!all.empty() && all.back().kind == piece.kind && all.back().call == piece.call &&
        piece.name.empty()) {
      all.back().text += piece.text;
    } else {
      all.push_back(std::move(piece));
    }
  }
}

std::vector<OutputDelta> ParseInPieces(const OutputParser::Options& options, absl::string_view text,
                                       size_t piece) {
  OutputParser parser(options);
  std::vector<OutputDelta> all;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
    AppendDeltas(parser.Push(text.substr(0, piece)), all);
  AppendDeltas(parser.Finish(), all);
  return all;
}

bool RunOutputParser(absl::string_view input) {
  InputReader reader(input);
  const uint8_t flags = reader.Byte();
  const size_t piece = size_t{1} + reader.Byte();
  const std::string name =
      absl::StrCat(kOutputFormats[flags % kOutputFormats.size()], (flags & 8) != 0 ? "+think" : "");
  OutputParser::Options options{
      .format = *OutputFormatOf(name),
      .tools = (flags & 16) != 0 ? std::vector<std::string>{} : std::vector<std::string>{"f", "get_x"},
      .in_reasoning = (flags & 32) != 0,
      .max_held_bytes = kMostHeldBytes};
  const absl::string_view text = reader.Rest();
  const std::vector<OutputDelta> whole = ParseInPieces(options, text, SIZE_MAX);
  Require(ParseInPieces(options, text, piece) == whole, "the same pieces however the output comes");
  size_t num_bytes = 0;
  bool has_calls = false;
  uint32_t next_call = 0;
  for (const OutputDelta& delta : whole) {
    num_bytes += delta.text.size();
    if (delta.kind != OutputDelta::Kind::kCall) continue;
    has_calls = true;
    if (!delta.name.empty()) Require(delta.call == next_call++, "calls in order");
    Require(delta.call < next_call, "a name before arguments");
  }
  // Arguments that are not there are written as an empty object.
  Require(num_bytes <= text.size() + 2 * size_t{next_call}, "no more text than the model wrote");
  return has_calls;
}

std::vector<std::string> OutputParserSeeds() {
  const char* const outputs[] = {
      "Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": [1, "
      "{}]}}</tool_call>\n<tool_call>{\"arguments\":{},"
      "\"name\":\"get_x\"}</tool_call>\n done",
      R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "get_x", "parameters": {"b": "}"}})",
      R"([TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "get_x", "arguments": {"a": null}}] x)",
      R"([TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_x[ARGS]{})",
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
      "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
      "1}\n```<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜>",
      R"([{"name": "f", "arguments": {"q": "\u00e9"}}, {"name": "get_x", "arguments": {}}])",
      "Nothing to call."};
  std::vector<std::string> seeds;
  for (char format = 0; format < 8; ++format) {
    seeds.push_back(absl::StrCat(std::string{format, '\3'}, outputs[static_cast<size_t>(format)]));
    seeds.push_back(absl::StrCat(std::string{static_cast<char>(format | 8), '\1'},
                                 "<think>\nhm\n</think>\n\n", outputs[static_cast<size_t>(format)]));
  }
  return seeds;
}

const Registration kOutputParser(
    {.name = "output_parser", .run = RunOutputParser, .seeds = OutputParserSeeds, .spoilt = 30'000});

}  // namespace
}  // namespace tandem::fuzz
