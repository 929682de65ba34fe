#include "router/http/api_description.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/config/version.h"

namespace tandem::router {
namespace {

// The fields without which a body is refused. Absent models are the tenant's only one.
const std::map<absl::string_view, std::vector<const char*>>& RequiredFields() {
  static const auto* const fields = new std::map<absl::string_view, std::vector<const char*>>{
      {"/v1/chat/completions", {"messages"}},
      {"/v1/completions", {"prompt"}},
      {"/v1/responses", {"input"}},
      {"/v1/messages", {"messages", "max_tokens"}},
      {"/v1/messages/count_tokens", {"messages"}},
      {"/tokenize", {}},  // A prompt or messages.
      {"/detokenize", {"tokens"}},
  };
  return *fields;
}

OrderedJson OperationOf(const Endpoint& endpoint) {
  OrderedJson operation = {{"summary", endpoint.summary}};
  const absl::string_view path = endpoint.path;
  if (const size_t begin = path.find('{'); begin != absl::string_view::npos) {
    const absl::string_view name = path.substr(begin + 1, path.find('}') - begin - 1);
    operation["parameters"] = OrderedJson::array({{{"name", std::string(name)},
                                                   {"in", "path"},
                                                   {"required", true},
                                                   {"schema", {{"type", "string"}}}}});
  }
  if (const auto required = RequiredFields().find(path); required != RequiredFields().end()) {
    operation["requestBody"] = {
        {"required", true},
        {"content",
         {{"application/json", {{"schema", {{"type", "object"}, {"required", required->second}}}}}}}};
  }
  operation["responses"] = {{"200", {{"description", "The answer."}}},
                            {"default", {{"description", "An error, with its reason."}}}};
  if (!endpoint.open) {
    operation["security"] = OrderedJson::array({{{"bearer", OrderedJson::array()}},
                                                {{"x-api-key", OrderedJson::array()}},
                                                {{"api-key", OrderedJson::array()}}});
  }
  return operation;
}

}  // namespace

OrderedJson OpenApiDocument(absl::Span<const Endpoint> endpoints) {
  OrderedJson paths = OrderedJson::object();
  for (const Endpoint& endpoint : endpoints)
    paths[endpoint.path][absl::AsciiStrToLower(endpoint.method)] = OperationOf(endpoint);
  OrderedJson schemes = {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}}};
  for (const char* name : {"x-api-key", "api-key"})
    schemes[name] = {{"type", "apiKey"}, {"in", "header"}, {"name", name}};
  const absl::string_view version = Version();
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "Tandem"}, {"version", std::string(version)}}},
          {"paths", std::move(paths)},
          {"components", {{"securitySchemes", std::move(schemes)}}}};
}

std::string DescriptionPage(absl::Span<const Endpoint> endpoints) {
  std::string page = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Tandem</title>\n"
      "<style>body{font-family:sans-serif;margin:2em}td,th{padding:.3em "
      ".8em;text-align:left}</style></head>\n"
      "<body>\n<h1>Tandem ",
      Version(),
      "</h1>\n<p>The HTTP API of this router. The same for programs: <a "
      "href=\"openapi.json\">openapi.json</a>.</p>\n"
      "<table>\n<tr><th></th><th>path</th><th>what it does</th><th>token</th></tr>\n");
  for (const Endpoint& endpoint : endpoints) {
    absl::StrAppend(&page, "<tr><td>", endpoint.method, "</td><td><code>", endpoint.path, "</code></td><td>",
                    endpoint.summary, "</td><td>", endpoint.open ? "none" : "a tenant's", "</td></tr>\n");
  }
  return page + "</table>\n</body>\n</html>\n";
}

}  // namespace tandem::router
