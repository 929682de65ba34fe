#include "common/tokenizer/jinja/jinja_catalog.h"

#include <algorithm>
#include <iterator>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

using Catalog = absl::flat_hash_map<absl::string_view, JinjaSignature>;

constexpr absl::string_view kUnsupportedFunctions[] = {"lipsum", "self", "super"};
constexpr absl::string_view kUnsupportedMethods[] = {
    "encode", "decode",     "maketrans", "translate",  "as_integer_ratio", "bit_count", "bit_length",
    "hex",    "from_bytes", "fromhex",   "is_integer", "to_bytes",         "conjugate"};

template <size_t N>
bool IsListed(const absl::string_view (&names)[N], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const Catalog& KnownFilters() {
  static const auto* filters = new Catalog{
      {"abs", {}},
      {"attr", {{"name"}, 1}},
      {"batch", {{"linecount", "fill_with"}, 1}},
      {"capitalize", {}},
      {"center", {{"width"}}},
      {"count", {}},
      {"d", {{"default_value", "boolean"}}},
      {"default", {{"default_value", "boolean"}}},
      {"dictsort", {{"case_sensitive", "by", "reverse"}}},
      {"e", {}},
      {"escape", {}},
      {"filesizeformat", {{"binary"}}},
      {"first", {}},
      {"float", {{"default"}}},
      {"forceescape", {}},
      {"format", {{}, 0, true}},
      {"groupby", {{"attribute", "default", "case_sensitive"}, 1}},
      {"indent", {{"width", "first", "blank"}}},
      {"int", {{"default", "base"}}},
      {"items", {}},
      {"join", {{"d", "attribute"}}},
      {"last", {}},
      {"length", {}},
      {"list", {}},
      {"lower", {}},
      {"map", {{}, 0, true}},
      {"max", {{"case_sensitive", "attribute"}}},
      {"min", {{"case_sensitive", "attribute"}}},
      {"reject", {{}, 0, true}},
      {"rejectattr", {{}, 0, true}},
      {"replace", {{"old", "new", "count"}, 2}},
      {"reverse", {}},
      {"round", {{"precision", "method"}}},
      {"safe", {}},
      {"select", {{}, 0, true}},
      {"selectattr", {{}, 0, true}},
      {"slice", {{"slices", "fill_with"}, 1}},
      {"sort", {{"reverse", "case_sensitive", "attribute"}}},
      {"string", {}},
      {"sum", {{"attribute", "start"}}},
      {"title", {}},
      {"tojson", {{"ensure_ascii", "indent", "separators", "sort_keys"}}},
      {"trim", {{"chars"}}},
      {"truncate", {{"length", "killwords", "end", "leeway"}}},
      {"unique", {{"case_sensitive", "attribute"}}},
      {"upper", {}},
      {"urlencode", {}},
      {"wordcount", {}},
      {"xmlattr", {{"autospace"}}},
  };
  return *filters;
}

const Catalog& Tests() {
  static const auto* tests = [] {
    auto* made = new Catalog();
    for (const char* name : {"boolean", "callable", "defined",  "escaped", "even",    "false",     "filter",
                             "float",   "integer",  "iterable", "lower",   "mapping", "none",      "number",
                             "odd",     "sequence", "string",   "test",    "true",    "undefined", "upper"})
      made->emplace(name, JinjaSignature{});
    for (const char* name : {"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt",
                             "in", "le", "lessthan", "lt", "ne"})
      made->emplace(name, JinjaSignature{.parameters = {"other"}, .required = 1, .positional_only = true});
    made->emplace("sameas", JinjaSignature{.parameters = {"other"}, .required = 1});
    made->emplace("divisibleby", JinjaSignature{.parameters = {"num"}, .required = 1});
    return made;
  }();
  return *tests;
}

const JinjaSignature* Find(const Catalog& catalog, absl::string_view name) {
  const auto found = catalog.find(name);
  return found == catalog.end() ? nullptr : &found->second;
}

}  // namespace

const JinjaSignature* FindJinjaFilter(absl::string_view name) {
  return Find(KnownFilters(), name);
}

const JinjaSignature* FindJinjaTest(absl::string_view name) {
  return Find(Tests(), name);
}

bool IsUnsupportedJinjaFunction(absl::string_view name) {
  return IsListed(kUnsupportedFunctions, name);
}

bool IsUnsupportedPythonMethod(absl::string_view name) {
  return IsListed(kUnsupportedMethods, name);
}

absl::Status CheckJinjaCall(const JinjaSignature& signature, absl::string_view what, size_t num_positional,
                            const std::vector<absl::string_view>& named) {
  if (signature.takes_any) return absl::OkStatus();
  const std::vector<absl::string_view>& parameters = signature.parameters;
  if (num_positional > parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", num_positional, " arguments, expected at most ", parameters.size()));
  }
  for (const absl::string_view name : named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end() || signature.positional_only)
      return absl::InvalidArgumentError(absl::StrCat(what, " has no argument '", name, "'"));
    if (static_cast<size_t>(found - parameters.begin()) < num_positional)
      return absl::InvalidArgumentError(absl::StrCat(what, ": argument '", name, "' a second time"));
  }
  for (size_t i = num_positional; i < signature.required; ++i) {
    if (std::find(named.begin(), named.end(), parameters[i]) == named.end())
      return absl::InvalidArgumentError(absl::StrCat(what, " expects an argument '", parameters[i], "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckJinjaCall(const JinjaSignature& signature, absl::string_view what,
                            const JinjaArguments& arguments) {
  std::vector<absl::string_view> named;
  for (const auto& argument : arguments.named) named.push_back(argument.first);
  return CheckJinjaCall(signature, what, arguments.positional.size(), named);
}

}  // namespace tandem
