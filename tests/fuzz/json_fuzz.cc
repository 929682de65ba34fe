// Every reader of JSON there is, on the same text: they agree on what is JSON.

#include "common/grammar/schema/schema_grammar.h"
#include "common/model/config/strict_json.h"
#include "common/tokenizer/json_view.h"
#include "nlohmann/json.hpp"
#include "router/http/openai_json.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr char kJsonFile[] = "file.json";

bool RunJson(absl::string_view input) {
  const absl::StatusOr<JsonView> view = JsonView::Parse(input, kJsonFile);
  const absl::StatusOr<nlohmann::json> strict = ParseStrictJson(input, kJsonFile);
  const absl::StatusOr<nlohmann::json> body = router::ParseBody(input);
  if (!view.ok()) Refused(view.status(), kJsonFile);
  if (!body.ok()) Refused(body.status(), "");
  const absl::StatusOr<std::string> grammar = GrammarOfSchema(input, JsonLayout::kCompact, 32);
  if (!grammar.ok()) Refused(grammar.status(), "");
  Require(!grammar.ok() || strict.ok(), "a schema is JSON");
  if (!strict.ok()) return Refused(strict.status(), kJsonFile);
  Require(input.find('\0') == absl::string_view::npos, "no JSON has a byte that is zero");
  // What the strictest takes, all take alike, if it is not too deep for them.
  Require(view.ok() && view->value() == *strict, "the same document");
  if (body.ok()) Require(*body == *strict, "the same body");
  Require(PrintableValue(*strict).size() < 1000, "a short text of a value");
  // What is written is read as the same.
  const absl::StatusOr<nlohmann::json> again = ParseStrictJson(strict->dump(), kJsonFile);
  Require(again.ok() && *again == *strict, "the same document again");
  return true;
}

std::vector<std::string> JsonSeeds() {
  return {
      R"({"a": [1, -2.5e3, true, false, null, "\u00e9\ud83d\ude00\n\\\"/"], "b": {"": {}}})",
      "[[[[[[]]]]]]",
      " 1e308 ",
      "18446744073709551616",
      "-0",
      R"("text")",
      R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"type": "array", "items": {"type": "integer",
              "minimum": 1}, "minItems": 1}}, "required": ["a"], "additionalProperties": false,
              "$defs": {"x": {"anyOf": [{"type": "string", "pattern": "^a+$", "maxLength": 5}, {"enum": [1, "x", null]}]}}})"};
}

const Registration kJson({.name = "json", .run = RunJson, .seeds = JsonSeeds, .spoilt = 20'000});

}  // namespace
}  // namespace tandem::fuzz
