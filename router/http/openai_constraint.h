#pragma once

#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads what a request's output has to be: OpenAI's `response_format` (text, json_object, json_schema) and
// vLLM's `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar` and `structured_outputs` with the
// members json, json_object, regex, choice and grammar. At most one of them. `body` is what `fields` was
// parsed from: the order of a schema's properties is that of the text. Errors go to `fields`.
void ReadConstraint(absl::string_view body, JsonFields& fields, v1::GenerateRequest& request);

// `text.format` of /v1/responses, which is `format`: as response_format, but without an object around a
// schema. `fields` take the errors.
void ReadTextFormat(absl::string_view body, const Json& format, JsonFields& fields,
                    v1::GenerateRequest& request);

}  // namespace tandem::router
