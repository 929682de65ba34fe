#include "common/grammar/schema_source.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/regex_grammar.h"
#include "common/grammar/schema/schema_grammar.h"
#include "common/grammar/tags_json.h"

namespace tandem {
namespace {

// Bounds were checked when the constraint came (ConstraintLimits); this one protects the stack.
constexpr size_t kMostDepth = 1'000;
// Of all grammars of a constraint together.
constexpr size_t kMostBytes = 16 << 20;

absl::Status In(absl::string_view field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

}  // namespace

absl::StatusOr<ConstraintSource> WithGrammars(const ConstraintSource& source) {
  if (source.form == ConstraintSource::Form::kJsonSchema) {
    TANDEM_ASSIGN_OR_RETURN(
        std::string grammar,
        GrammarOfSchema(source.text, source.any_whitespace ? JsonLayout::kFree : JsonLayout::kCompact,
                        kMostDepth));
    return ConstraintSource{.form = ConstraintSource::Form::kGrammar, .text = std::move(grammar)};
  }
  if (source.form == ConstraintSource::Form::kRegex) {
    TANDEM_ASSIGN_OR_RETURN(std::string grammar, GrammarOfRegex(source.text));
    return ConstraintSource{.form = ConstraintSource::Form::kGrammar, .text = std::move(grammar)};
  }
  if (source.form != ConstraintSource::Form::kStructuralTags) return source;
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(source.text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("structural tags are not JSON");
  size_t bytes = 0;
  nlohmann::ordered_json& tags = TagsIn(json);
  for (size_t i = 0; i < tags.size(); ++i) {
    nlohmann::ordered_json& content = tags[i].at("content");
    if (content.at("type") != "json_schema") continue;
    absl::StatusOr<std::string> grammar = GrammarOfSchema(
        content.at("json_schema").get_ref<const std::string&>(), JsonLayout::kFree, kMostDepth);
    if (!grammar.ok()) return In(absl::StrCat("tags[", i, "].content"), grammar.status());
    bytes += grammar->size();
    if (bytes > kMostBytes) {
      return absl::InvalidArgumentError(
          "too large: the grammars of all schemas together have more than 16 MiB");
    }
    content = {{"type", "grammar"}, {"grammar", *std::move(grammar)}};
  }
  return ConstraintSource{.form = source.form, .text = json.dump()};
}

}  // namespace tandem
