#include "router/http/openai_constraint.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/model/config/strict_json.h"

namespace tandem::router {
namespace {

// The JSON text of a member of the body, its objects' members in the order in which they stand there.
std::string TextOf(absl::string_view body, const std::string& pointer) {
  const OrderedJson whole = OrderedJson::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const OrderedJson::json_pointer place(pointer);
  return whole.contains(place) ? whole.at(place).dump() : "";
}

// A schema as an object of the body, or as a text that is one.
void SetSchema(absl::string_view body, const std::string& pointer, const Json& schema,
               v1::Constraint& constraint) {
  constraint.mutable_json_schema()->set_schema(schema.is_string() ? schema.get<std::string>()
                                                                  : TextOf(body, pointer));
}

void ReadResponseFormat(absl::string_view body, const Json& format, JsonFields& fields,
                        std::optional<v1::Constraint>& constraint) {
  JsonFields own(format, "response_format.");
  const std::string type = own.Text("type").value_or("");
  if (type == "json_object") {
    constraint.emplace().mutable_json_object();
  } else if (type == "json_schema") {
    const Json* const described = own.Find("json_schema");
    if (described == nullptr) own.Fail("json_schema", "missing");
    if (described != nullptr) {
      JsonFields schema(*described, "response_format.json_schema.");
      // Outputs are held to all of a schema, whatever is said of that.
      for (const char* name : {"name", "description", "strict"}) schema.Ignore(name);
      const Json* const text = schema.Find("schema");
      if (text == nullptr) schema.Fail("schema", "missing");
      if (text != nullptr)
        SetSchema(body, "/response_format/json_schema/schema", *text, constraint.emplace());
      own.Update(schema.Finish());
    }
  } else if (type != "text") {
    own.Fail("type", absl::StrCat("found \"", PrintableText(type),
                                  "\", expected \"text\", \"json_object\" or \"json_schema\""));
  }
  fields.Update(own.Finish());
}

// The forms that vLLM has, as members of `fields` whose names begin with `prefix`; `pointer` is where these
// stand.
void ReadGuides(absl::string_view body, const std::string& prefix, const std::string& pointer,
                JsonFields& fields, std::optional<v1::Constraint>& constraint) {
  const auto set = [&]() -> v1::Constraint& {
    if (constraint.has_value())
      fields.Fail(prefix.empty() ? "json" : prefix, "more than one format, expected one");
    return constraint.emplace();
  };
  if (const Json* const schema = fields.Find(prefix + "json"))
    SetSchema(body, absl::StrCat(pointer, "/", prefix, "json"), *schema, set());
  if (fields.Flag(prefix + "json_object").value_or(false)) set().mutable_json_object();
  if (auto regex = fields.Text(prefix + "regex")) set().set_regex(*std::move(regex));
  if (auto grammar = fields.Text(prefix + "grammar")) set().set_grammar(*std::move(grammar));
  const Json* const choices = fields.Find(prefix + "choice");
  if (choices == nullptr) return;
  v1::Choices& list = *set().mutable_choices();
  if (!choices->is_array()) return fields.Fail(prefix + "choice", "expected a list of texts");
  for (const Json& choice : *choices) {
    if (!choice.is_string()) return fields.Fail(prefix + "choice", "expected a list of texts");
    list.add_choices(choice.get<std::string>());
  }
}

}  // namespace

void ReadConstraint(absl::string_view body, JsonFields& fields, v1::GenerateRequest& request) {
  std::optional<v1::Constraint> constraint;
  if (const Json* const format = fields.Find("response_format"))
    ReadResponseFormat(body, *format, fields, constraint);
  ReadGuides(body, "guided_", "", fields, constraint);
  if (const Json* const outputs = fields.Find("structured_outputs")) {
    JsonFields own(*outputs, "structured_outputs.");
    ReadGuides(body, "", "/structured_outputs", own, constraint);
    fields.Update(own.Finish());
  }
  fields.Refuse("structural_tag", "not supported over HTTP");
  if (constraint.has_value()) *request.mutable_constraint() = *std::move(constraint);
}

void ReadTextFormat(absl::string_view body, const Json& format, JsonFields& fields,
                    v1::GenerateRequest& request) {
  JsonFields own(format, "text.format.");
  const std::string type = own.Text("type").value_or("text");
  for (const char* name : {"name", "description", "strict"}) own.Ignore(name);
  if (type == "json_object") {
    request.mutable_constraint()->mutable_json_object();
  } else if (type == "json_schema") {
    const Json* const schema = own.Find("schema");
    if (schema == nullptr) own.Fail("schema", "missing");
    if (schema != nullptr) SetSchema(body, "/text/format/schema", *schema, *request.mutable_constraint());
  } else if (type != "text") {
    own.Fail("type", absl::StrCat("found \"", PrintableText(type),
                                  "\", expected \"text\", \"json_object\" or \"json_schema\""));
  }
  fields.Update(own.Finish());
}

void ReadSchemaFormat(absl::string_view body, const std::string& path, const Json& format, JsonFields& fields,
                      v1::GenerateRequest& request) {
  JsonFields own(format, path + ".");
  if (const std::string type = own.Text("type").value_or(""); type != "json_schema")
    own.Fail("type", absl::StrCat("found \"", PrintableText(type), "\", expected \"json_schema\""));
  const Json* const schema = own.Find("schema");
  if (schema == nullptr) own.Fail("schema", "missing");
  const std::string pointer = absl::StrCat("/", absl::StrReplaceAll(path, {{".", "/"}}), "/schema");
  if (schema != nullptr) SetSchema(body, pointer, *schema, *request.mutable_constraint());
  fields.Update(own.Finish());
}

}  // namespace tandem::router
