#pragma once

#include <string>

#include "absl/types/span.h"
#include "router/http/openai_json.h"

namespace tandem::router {

// One method of one path of the HTTP API.
struct Endpoint {
  const char* method;
  const char* path;     // As OpenAPI has it: a part that varies stands in braces.
  bool open;            // Needs no token.
  const char* summary;  // Ends with a full stop.
};

// The API in OpenAPI's format, version 3.1. Bodies are described as far as a client must fill them;
// docs/reference/http.md lists their fields.
OrderedJson OpenApiDocument(absl::Span<const Endpoint> endpoints);
// The same as a page of HTML for people, without scripts.
std::string DescriptionPage(absl::Span<const Endpoint> endpoints);

}  // namespace tandem::router
