#include "common/rpc/constraint_wire.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// What a message begins with may be an index in the field.
absl::Status In(absl::string_view field, const absl::Status& status) {
  const bool has_index = absl::StartsWith(status.message(), "[");
  return absl::Status(status.code(), absl::StrCat(field, has_index ? "" : ": ", status.message()));
}

absl::StatusOr<ConstraintSource> StringConstraint(const v1::JsonString& proto) {
  switch (proto.value_case()) {
    case v1::JsonString::kRegex:
      return JsonStringsMatching(proto.regex());
    case v1::JsonString::kLark:
      return ConstraintSource{.form = ConstraintSource::Form::kLarkString, .text = proto.lark()};
    case v1::JsonString::VALUE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("json_string: expected regex or lark");
}

// A constraint without parts of its own, as a request or as a tag's content has it.
absl::StatusOr<ConstraintSource> SimpleConstraint(const v1::Constraint& proto) {
  switch (proto.form_case()) {
    case v1::Constraint::kJsonSchema:
      return ConstraintSource{.form = ConstraintSource::Form::kJsonSchema,
                              .text = proto.json_schema().schema(),
                              .any_whitespace = proto.json_schema().any_whitespace()};
    case v1::Constraint::kJsonObject:
      return AnyJsonObject(proto.json_object().any_whitespace());
    case v1::Constraint::kRegex:
      return ConstraintSource{.form = ConstraintSource::Form::kRegex, .text = proto.regex()};
    case v1::Constraint::kGrammar:
      return ConstraintSource{.form = ConstraintSource::Form::kGrammar, .text = proto.grammar()};
    case v1::Constraint::kJsonString:
      return StringConstraint(proto.json_string());
    case v1::Constraint::kChoices:
    case v1::Constraint::kStructuralTags:
    case v1::Constraint::FORM_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("expected json_schema, json_object, json_string, regex or grammar");
}

absl::StatusOr<ConstraintSource> TagsFromProto(const v1::StructuralTags& proto,
                                               const ConstraintLimits& limits) {
  StructuralTags tags{.triggers = {proto.triggers().begin(), proto.triggers().end()},
                      .tags = {},
                      .at_least_one = proto.at_least_one(),
                      .stop_after_first = proto.stop_after_first(),
                      .only_tags = proto.only_tags()};
  for (int i = 0; i < proto.tags_size(); ++i) {
    absl::StatusOr<ConstraintSource> content = SimpleConstraint(proto.tags(i).content());
    if (!content.ok()) return In(absl::StrCat("tags[", i, "].content"), content.status());
    tags.tags.push_back(
        {.begin = proto.tags(i).begin(), .content = *std::move(content), .end = proto.tags(i).end()});
  }
  return ConstraintOfTags(tags, limits);
}

// With the name of the form, for errors.
absl::StatusOr<ConstraintSource> AnyConstraint(const v1::Constraint& proto, const ConstraintLimits& limits,
                                               std::string* form) {
  switch (proto.form_case()) {
    case v1::Constraint::kJsonSchema:
      *form = "json_schema.schema";
      return SimpleConstraint(proto);
    case v1::Constraint::kJsonObject:
      *form = "json_object";
      return SimpleConstraint(proto);
    case v1::Constraint::kRegex:
      *form = "regex";
      return SimpleConstraint(proto);
    case v1::Constraint::kGrammar:
      *form = "grammar";
      return SimpleConstraint(proto);
    case v1::Constraint::kJsonString:
      *form = "json_string";
      return SimpleConstraint(proto);
    case v1::Constraint::kChoices: {
      *form = "choices";
      const std::vector<std::string> choices(proto.choices().choices().begin(),
                                             proto.choices().choices().end());
      return ConstraintOfChoices(choices);
    }
    case v1::Constraint::kStructuralTags:
      *form = "structural_tags";
      return TagsFromProto(proto.structural_tags(), limits);
    case v1::Constraint::FORM_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "expected json_schema, json_object, json_string, regex, grammar, choices or structural_tags");
}

}  // namespace

absl::StatusOr<ConstraintSource> ConstraintFromProto(const v1::Constraint& proto,
                                                     const ConstraintLimits& limits) {
  if (proto.ByteSizeLong() > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("constraint: ", proto.ByteSizeLong(), " bytes, expected at most ", limits.max_bytes));
  }
  std::string form;
  absl::StatusOr<ConstraintSource> source = AnyConstraint(proto, limits, &form);
  absl::Status checked = source.status();
  // What we made of it is longer than what was sent.
  const ConstraintLimits made{.max_bytes = 8 * limits.max_bytes, .max_depth = limits.max_depth};
  if (checked.ok()) checked = CheckConstraint(*source, made);
  if (!checked.ok()) return In(form.empty() ? "constraint" : absl::StrCat("constraint.", form), checked);
  return *std::move(source);
}

}  // namespace tandem
