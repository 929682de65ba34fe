#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "router/http/field_names.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads the constraint of a request: OpenAI's `response_format` (text, json_object, json_schema, and vLLM's
// structural_tag), or vLLM's `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`,
// `structural_tag` and `structured_outputs` with the members json, json_object, regex, choice, grammar and
// structural_tag. At most one of them is allowed. `body`: the text from which `fields` was parsed; a schema's
// properties keep their order in it. JSON has the free layout unless `structured_outputs` has vLLM's
// `disable_any_whitespace`. Errors go to `fields`; `names` gets where the constraint stands.
void ReadConstraint(absl::string_view body, JsonFields& fields, FieldNames& names,
                    v1::GenerateRequest& request);

// Reads `text.format` of /v1/responses, passed as `format`: like response_format, but without an object
// around the schema, and with `disable_any_whitespace` in it. Errors go to `fields`.
void ReadTextFormat(absl::string_view body, const Json& format, JsonFields& fields, FieldNames& names,
                    v1::GenerateRequest& request);

// The same for the Messages API, whose formats are schemas alone. `path`: where `format` stands, such as
// "output_config.format".
void ReadSchemaFormat(absl::string_view body, const std::string& path, const Json& format, JsonFields& fields,
                      FieldNames& names, v1::GenerateRequest& request);

}  // namespace tandem::router
