#include "router/http/openai_constraint.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/model/config/strict_json.h"
#include "router/http/openai_request.h"
#include "router/http/raw_json.h"

namespace tandem::router {
namespace {

// As many as ConstraintOfTags takes.
constexpr size_t kMostTags = 1'000;

// A place of the body: how it is written there, for schemas, and its name in errors.
struct Place {
  absl::string_view text;
  std::string path;

  Place Member(absl::string_view name) const {
    return {RawMember(text, name), absl::StrCat(path, path.empty() ? "" : ".", name)};
  }
};

// A schema as an object of the body, or as a text that is one.
void SetSchema(const Place& place, const Json& schema, v1::Constraint& constraint) {
  constraint.mutable_json_schema()->set_schema(schema.is_string() ? schema.get<std::string>()
                                                                  : CompactJson(place.text));
}

// The content of a tag: {"type": "json_schema", "json_schema": {...}}, or a regular expression or a grammar.
void ReadTagContent(const Json& json, const JsonFields& outer, const Place& place, v1::Constraint& content,
                    absl::Status& status) {
  JsonFields own(json, outer, place.path + ".");
  const std::string type = own.Text("type").value_or("");
  if (type == "json_schema") {
    const Json* const schema = own.Find("json_schema");
    if (schema == nullptr) own.Missing("json_schema");
    if (schema != nullptr) SetSchema(place.Member("json_schema"), *schema, content);
  } else if (type == "regex") {
    content.set_regex(own.Text("pattern").value_or(""));
  } else if (type == "grammar") {
    content.set_grammar(own.Text("grammar").value_or(""));
  } else {
    own.Fail("type", absl::StrCat("found \"", PrintableText(type),
                                  "\", expected \"json_schema\", \"regex\" or \"grammar\""));
  }
  status.Update(own.Finish());
}

// A list of tags, of which `older` ones have their schema beside begin and end.
void ReadTags(JsonFields& fields, const char* name, bool older, const Place& place,
              v1::StructuralTags& tags) {
  const Json* const list = fields.Find(name);
  if (list == nullptr) return fields.Missing(name);
  if (!list->is_array()) return fields.FailType(name, *list, "a list of tags");
  if (list->size() > kMostTags) {
    return fields.Fail(name, absl::StrCat(list->size(), " of them, expected at most ", kMostTags));
  }
  const Place all = place.Member(name);
  const std::vector<absl::string_view> texts = RawElements(all.text);
  for (size_t i = 0; i < list->size(); ++i) {
    const Place at = {texts[i], absl::StrCat(all.path, "[", i, "]")};
    JsonFields own((*list)[i], fields, at.path + ".");
    v1::StructuralTag& tag = *tags.add_tags();
    tag.set_begin(own.Text("begin").value_or(""));
    tag.set_end(own.Text("end").value_or(""));
    const char* const member = older ? "schema" : "content";
    const Json* const content = own.Find(member);
    absl::Status status;
    if (content == nullptr) {
      own.Missing(member);
    } else if (older) {
      SetSchema(at.Member(member), *content, *tag.mutable_content());
    } else {
      ReadTagContent(*content, own, at.Member(member), *tag.mutable_content(), status);
    }
    own.Update(status);
    own.Ignore("type");  // "tag".
    fields.Update(own.Finish());
  }
}

void ReadTriggers(JsonFields& fields, v1::StructuralTags& tags) {
  const Json* const triggers = fields.Find("triggers");
  if (triggers == nullptr) return fields.Missing("triggers");
  ReadTexts(fields, "triggers", *tags.mutable_triggers());
}

// vLLM's structural tags: {"structures": [...], "triggers": [...]}, or in `format` XGrammar's triggered tags.
void ReadStructuralTags(JsonFields& fields, const Place& place, FieldNames& names,
                        std::optional<v1::Constraint>& constraint) {
  v1::StructuralTags& tags = *constraint.emplace().mutable_structural_tags();
  const Json* const format = fields.Find("format");
  const Place at = format == nullptr ? place : place.Member("format");
  if (format == nullptr) {
    ReadTags(fields, "structures", /*older=*/true, place, tags);
    ReadTriggers(fields, tags);
  } else {
    JsonFields own(*format, fields, at.path + ".");
    const std::string type = own.Text("type").value_or("");
    if (type != "triggered_tags") {
      own.Fail("type", absl::StrCat("found \"", PrintableText(type), "\", expected \"triggered_tags\""),
               kUnsupportedParameter);
    }
    ReadTags(own, "tags", /*older=*/false, at, tags);
    ReadTriggers(own, tags);
    tags.set_at_least_one(own.Flag("at_least_one").value_or(false));
    tags.set_stop_after_first(own.Flag("stop_after_first").value_or(false));
    fields.Update(own.Finish());
  }
  names.SetConstraint(at.path);
  for (int i = 0; i < tags.tags_size(); ++i) {
    const std::string tag = absl::StrCat(at.path, format == nullptr ? ".structures[" : ".tags[", i, "]");
    const std::string content =
        absl::StrCat(tag, format == nullptr                          ? ".schema"
                          : tags.tags(i).content().has_json_schema() ? ".content.json_schema"
                                                                     : ".content");
    const std::string ours = absl::StrCat("constraint.structural_tags.tags[", i, "]");
    names.Set(ours, tag);
    names.Set(ours + ".content", content);
  }
}

// The same as an object, or as a text that is one.
void ReadStructuralTagField(JsonFields& fields, const char* name, const Place& place, FieldNames& names,
                            std::optional<v1::Constraint>& constraint) {
  const Json* const given = fields.Find(name);
  if (given == nullptr) return;
  Place at = place.Member(name);
  if (!given->is_string()) {
    JsonFields own(*given, fields, at.path + ".");
    own.Ignore("type");
    ReadStructuralTags(own, at, names, constraint);
    return fields.Update(own.Finish());
  }
  const std::string text = given->get<std::string>();
  const absl::StatusOr<Json> parsed = ParseBody(text);
  if (!parsed.ok()) return fields.Fail(name, "expected an object, or a text that is one");
  at.text = text;
  JsonFields own(*parsed, fields, at.path + ".");
  own.Ignore("type");
  ReadStructuralTags(own, at, names, constraint);
  fields.Update(own.Finish());
}

// What several APIs have: a schema beside its name, in `own`.
void ReadSchema(JsonFields& own, const Place& place, FieldNames& names,
                std::optional<v1::Constraint>& constraint) {
  // Outputs are held to all of a schema, whatever is said of that.
  for (const char* name : {"name", "description", "strict"}) own.Ignore(name);
  const Json* const schema = own.Find("schema");
  if (schema == nullptr) return own.Missing("schema");
  const Place at = place.Member("schema");
  SetSchema(at, *schema, constraint.emplace());
  names.SetConstraint(at.path);
}

void ReadResponseFormat(absl::string_view body, const Json& format, JsonFields& fields, FieldNames& names,
                        std::optional<v1::Constraint>& constraint) {
  const Place place = Place{body, ""}.Member("response_format");
  JsonFields own(format, fields, "response_format.");
  const std::string type = own.Text("type").value_or("");
  if (type == "json_object") {
    // Some servers take a schema beside it; without effect it would be missed.
    const Json* const schema = own.Find("schema");
    if (schema == nullptr) {
      constraint.emplace().mutable_json_object();
    } else {
      const Place at = place.Member("schema");
      SetSchema(at, *schema, constraint.emplace());
      names.SetConstraint(at.path);
    }
  } else if (type == "json_schema") {
    const Json* const described = own.Find("json_schema");
    if (described == nullptr) own.Missing("json_schema");
    if (described != nullptr) {
      JsonFields schema(*described, own, "response_format.json_schema.");
      ReadSchema(schema, place.Member("json_schema"), names, constraint);
      own.Update(schema.Finish());
    }
  } else if (type == "structural_tag") {
    ReadStructuralTags(own, place, names, constraint);
  } else if (type != "text") {
    own.Fail("type",
             absl::StrCat("found \"", PrintableText(type),
                          "\", expected \"text\", \"json_object\", \"json_schema\" or \"structural_tag\""));
  }
  fields.Update(own.Finish());
}

// The forms that vLLM has, as members of `fields` whose names begin with `prefix`; `place` is where these
// stand.
void ReadGuides(const std::string& prefix, const Place& place, JsonFields& fields, FieldNames& names,
                std::optional<v1::Constraint>& constraint) {
  const auto set = [&](const std::string& name) -> v1::Constraint& {
    if (constraint.has_value()) fields.Fail(name, "more than one format, expected one");
    names.SetConstraint(place.Member(name).path);
    return constraint.emplace();
  };
  const std::string json = prefix + "json";
  if (const Json* const schema = fields.Find(json)) SetSchema(place.Member(json), *schema, set(json));
  const std::string object = prefix + "json_object";
  if (fields.Flag(object).value_or(false)) set(object).mutable_json_object();
  if (auto regex = fields.Text(prefix + "regex")) set(prefix + "regex").set_regex(*std::move(regex));
  if (auto grammar = fields.Text(prefix + "grammar"))
    set(prefix + "grammar").set_grammar(*std::move(grammar));
  const std::string choice_name = prefix + "choice";
  const Json* const choices = fields.Find(choice_name);
  if (choices == nullptr) return;
  v1::Choices& list = *set(choice_name).mutable_choices();
  ReadTexts(fields, choice_name, *list.mutable_choices());
}

// What only guides backends that are not here; the same outputs are allowed without.
void IgnoreBackendOptions(JsonFields& own) {
  for (const char* name : {"_backend", "_backend_was_auto", "disable_fallback"}) own.Ignore(name);
  own.Refuse("disable_additional_properties", "expected false; the schema says it");
  own.Refuse("whitespace_pattern", "not supported");
}

// Models write JSON in the layout that they have learned; held to another one they write less well.
void SetLayout(bool compact, v1::Constraint& constraint) {
  if (constraint.has_json_schema()) constraint.mutable_json_schema()->set_any_whitespace(!compact);
  if (constraint.has_json_object()) constraint.mutable_json_object()->set_any_whitespace(!compact);
}

}  // namespace

void ReadConstraint(absl::string_view body, JsonFields& fields, FieldNames& names,
                    v1::GenerateRequest& request) {
  const Place whole{body, ""};
  std::optional<v1::Constraint> constraint;
  if (const Json* const format = fields.Find("response_format"))
    ReadResponseFormat(body, *format, fields, names, constraint);
  ReadGuides("guided_", whole, fields, names, constraint);
  bool compact = false;
  if (const Json* const outputs = fields.Find("structured_outputs")) {
    JsonFields own(*outputs, fields, "structured_outputs.");
    compact = own.Flag("disable_any_whitespace").value_or(false);
    ReadGuides("", whole.Member("structured_outputs"), own, names, constraint);
    if (constraint.has_value() && own.Find("structural_tag") != nullptr)
      own.Fail("structural_tag", "more than one format, expected one");
    ReadStructuralTagField(own, "structural_tag", whole.Member("structured_outputs"), names, constraint);
    IgnoreBackendOptions(own);
    fields.Update(own.Finish());
  }
  if (constraint.has_value() && fields.Find("structural_tag") != nullptr)
    fields.Fail("structural_tag", "more than one format, expected one");
  ReadStructuralTagField(fields, "structural_tag", whole, names, constraint);
  fields.Ignore("guided_decoding_backend");
  if (!constraint.has_value()) return;
  SetLayout(compact, *constraint);
  *request.mutable_constraint() = *std::move(constraint);
}

void ReadTextFormat(absl::string_view body, const Json& format, JsonFields& fields, FieldNames& names,
                    v1::GenerateRequest& request) {
  const Place place = Place{body, ""}.Member("text").Member("format");
  JsonFields own(format, fields, "text.format.");
  const std::string type = own.Text("type").value_or("text");
  std::optional<v1::Constraint> constraint;
  if (type == "json_object") {
    constraint.emplace().mutable_json_object();
  } else if (type == "json_schema") {
    ReadSchema(own, place, names, constraint);
  } else if (type != "text") {
    own.Fail("type", absl::StrCat("found \"", PrintableText(type),
                                  "\", expected \"text\", \"json_object\" or \"json_schema\""));
  }
  for (const char* name : {"name", "description", "strict"}) own.Ignore(name);
  const bool compact = own.Flag("disable_any_whitespace").value_or(false);
  if (constraint.has_value()) {
    SetLayout(compact, *constraint);
    *request.mutable_constraint() = *std::move(constraint);
  }
  fields.Update(own.Finish());
}

void ReadSchemaFormat(absl::string_view body, const std::string& path, const Json& format, JsonFields& fields,
                      FieldNames& names, v1::GenerateRequest& request) {
  Place place{body, ""};
  for (const absl::string_view name : absl::StrSplit(path, '.')) place = place.Member(name);
  JsonFields own(format, fields, path + ".");
  if (const std::string type = own.Text("type").value_or(""); type != "json_schema")
    own.Fail("type", absl::StrCat("found \"", PrintableText(type), "\", expected \"json_schema\""));
  std::optional<v1::Constraint> constraint;
  ReadSchema(own, place, names, constraint);
  if (constraint.has_value()) *request.mutable_constraint() = *std::move(constraint);
  fields.Update(own.Finish());
}

}  // namespace tandem::router
