#include "common/grammar/schema/references.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/schema_document.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;

constexpr size_t kTwice = std::numeric_limits<size_t>::max();

// "a%20b" of a URI is "a b".
absl::StatusOr<std::string> WithoutPercents(absl::string_view part) {
  std::string text;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] != '%') {
      text.push_back(part[i]);
      continue;
    }
    uint32_t byte = 0;
    if (i + 2 >= part.size() || !absl::SimpleHexAtoi(part.substr(i + 1, 2), &byte)) {
      return absl::InvalidArgumentError("expected two hexadecimal digits after %");
    }
    text.push_back(static_cast<char>(byte));
    i += 2;
  }
  return text;
}

absl::Status DoesNotExist(absl::string_view reference) {
  return absl::InvalidArgumentError(absl::StrCat(PrintableText(reference), " does not exist"));
}

bool IsOneOf(absl::string_view name, std::initializer_list<absl::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The parts of a URI without a fragment.
struct Uri {
  std::optional<std::string> scheme;
  std::optional<std::string> authority;
  std::string path;
  std::optional<std::string> query;
};

Uri PartsOf(absl::string_view uri) {
  Uri parts;
  const size_t colon = uri.find(':');
  if (colon != absl::string_view::npos && colon > 0 && uri.find_first_of("/?") > colon) {
    parts.scheme = absl::AsciiStrToLower(uri.substr(0, colon));
    uri.remove_prefix(colon + 1);
  }
  if (const size_t query = uri.find('?'); query != absl::string_view::npos) {
    parts.query = std::string(uri.substr(query + 1));
    uri = uri.substr(0, query);
  }
  if (absl::ConsumePrefix(&uri, "//")) {
    const size_t end = std::min(uri.find('/'), uri.size());
    parts.authority = absl::AsciiStrToLower(uri.substr(0, end));
    uri.remove_prefix(end);
  }
  parts.path = std::string(uri);
  return parts;
}

// Section 5.2.4.
std::string WithoutDots(absl::string_view path) {
  const bool rooted = absl::StartsWith(path, "/");
  std::vector<absl::string_view> kept;
  const std::vector<absl::string_view> segments = absl::StrSplit(rooted ? path.substr(1) : path, '/');
  for (size_t i = 0; i < segments.size(); ++i) {
    const bool is_last = i + 1 == segments.size();
    if (segments[i] != "." && segments[i] != "..") {
      kept.push_back(segments[i]);
      continue;
    }
    if (segments[i] == ".." && !kept.empty()) kept.pop_back();
    if (is_last) kept.emplace_back("");
  }
  return absl::StrCat(rooted ? "/" : "", absl::StrJoin(kept, "/"));
}

}  // namespace

std::string ResolvedUri(absl::string_view base, absl::string_view reference) {
  Uri whole = PartsOf(reference);
  const Uri from = PartsOf(base);
  if (!whole.scheme.has_value()) {
    whole.scheme = from.scheme;
    if (!whole.authority.has_value()) {
      whole.authority = from.authority;
      if (whole.path.empty()) {
        whole.path = from.path;
        if (!whole.query.has_value()) whole.query = from.query;
      } else if (!absl::StartsWith(whole.path, "/")) {
        const size_t slash = from.path.rfind('/');
        const bool has_root = from.authority.has_value() && from.path.empty();
        whole.path = absl::StrCat(has_root                     ? "/"
                                  : slash == std::string::npos ? ""
                                                               : from.path.substr(0, slash + 1),
                                  whole.path);
      }
    }
  }
  return absl::StrCat(whole.scheme.has_value() ? *whole.scheme + ":" : "",
                      whole.authority.has_value() ? "//" + *whole.authority : "", WithoutDots(whole.path),
                      whole.query.has_value() ? "?" + *whole.query : "");
}

SchemaReferences::SchemaReferences(const JsonValue* root) : pointer_("#") {
  const JsonValue* const dialect = root->Find("$schema");
  draft_4_ = dialect != nullptr && (absl::StrContains(dialect->text, "json-schema.org/draft-03/") ||
                                    absl::StrContains(dialect->text, "json-schema.org/draft-04/"));
  resources_.push_back({.uri = {}, .place = {root, pointer_}});
  Walk(*root, 0, /*is_schema=*/true);
}

// `is_schema`: otherwise its members have names of their own. Values that are no schemas are not looked into.
void SchemaReferences::Walk(const JsonValue& value, size_t resource, bool is_schema) {
  const JsonValue* id = value.Find("$id");
  if (id == nullptr && (draft_4_ || &value == resources_[0].place.schema)) id = value.Find("id");
  if (is_schema && id != nullptr && id->Is(Type::kString)) Name(value, id->text, &resource);
  const size_t length = pointer_.size();
  for (size_t i = 0; i < value.items.size(); ++i) {
    absl::StrAppend(&pointer_, "/", i);
    Walk(value.items[i], resource, /*is_schema=*/true);
    pointer_.resize(length);
  }
  for (const auto& [name, member] : value.members) {
    if (is_schema && (name == "$anchor" || name == "$dynamicAnchor") && member.Is(Type::kString)) {
      const auto [known, added] =
          anchors_.try_emplace({resource, member.text}, SchemaPlace{&value, pointer_});
      if (!added && known->second.schema != &value) known->second.schema = nullptr;
    }
    if (is_schema && name == "$ref" && member.Is(Type::kString)) resource_of_.emplace(&member, resource);
    if (is_schema && IsOneOf(name, {"const", "default", "enum", "example", "examples"})) continue;
    if (!member.Is(Type::kArray) && !member.Is(Type::kObject)) continue;
    absl::StrAppend(&pointer_, Below("", name));
    Walk(member, resource,
         !is_schema || !IsOneOf(name, {"$defs", "definitions", "dependencies", "dependentSchemas",
                                       "patternProperties", "properties"}));
    pointer_.resize(length);
  }
}

void SchemaReferences::Name(const JsonValue& schema, absl::string_view id, size_t* resource) {
  if (absl::StartsWith(id, "#")) {
    // As drafts before 2019-09 give names; "#" says nothing.
    if (id.size() == 1) return;
    const auto [known, added] =
        anchors_.try_emplace({*resource, std::string(id.substr(1))}, SchemaPlace{&schema, pointer_});
    if (!added && known->second.schema != &schema) known->second.schema = nullptr;
    return;
  }
  id = id.substr(0, id.find('#'));
  if (id.empty()) return;
  std::string uri = id.size() > kMostBytes ? "" : ResolvedUri(resources_[*resource].uri, id);
  if (uri.size() > kMostBytes) uri.clear();
  if (&schema != resources_[0].place.schema) {
    resources_.push_back({.uri = {}, .place = {&schema, pointer_}});
    *resource = resources_.size() - 1;
  }
  if (!uri.empty()) {
    const auto [known, added] = by_uri_.try_emplace(uri, *resource);
    if (!added) known->second = kTwice;
  }
  resources_[*resource].uri = std::move(uri);
}

absl::StatusOr<size_t> SchemaReferences::ResourceOf(size_t from, absl::string_view uri) const {
  if (uri.empty()) return from;
  if (uri.size() > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("expected at most ", kMostBytes, " bytes"));
  }
  const auto found = by_uri_.find(ResolvedUri(resources_[from].uri, uri));
  if (found == by_uri_.end()) {
    return absl::InvalidArgumentError("expected a place in this schema, as #/$defs/NAME");
  }
  if (found->second == kTwice) {
    return absl::InvalidArgumentError(absl::StrCat("two schemas have the $id ", PrintableText(found->first)));
  }
  return found->second;
}

absl::StatusOr<SchemaPlace> SchemaReferences::Follow(const JsonValue& value) const {
  const absl::string_view reference = value.text;
  const auto known = resource_of_.find(&value);
  const size_t hash = std::min(reference.find('#'), reference.size());
  TANDEM_ASSIGN_OR_RETURN(const size_t resource, ResourceOf(known == resource_of_.end() ? 0 : known->second,
                                                            reference.substr(0, hash)));
  const absl::string_view fragment = absl::StripPrefix(reference.substr(hash), "#");
  if (!fragment.empty() && fragment[0] != '/') {
    TANDEM_ASSIGN_OR_RETURN(std::string name, WithoutPercents(fragment));
    const auto anchor = anchors_.find({resource, name});
    if (anchor == anchors_.end()) return DoesNotExist(reference);
    if (anchor->second.schema == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("two schemas have the $anchor ", PrintableText(name)));
    }
    return anchor->second;
  }
  SchemaPlace place = resources_[resource].place;
  if (fragment.empty()) return place;
  absl::StrAppend(&place.pointer, PrintableText(fragment));
  for (const absl::string_view part : absl::StrSplit(fragment.substr(1), '/')) {
    TANDEM_ASSIGN_OR_RETURN(std::string name, WithoutPercents(part));
    name = absl::StrReplaceAll(name, {{"~1", "/"}, {"~0", "~"}});
    size_t index = 0;
    const bool is_index = place.schema->Is(Type::kArray) && absl::SimpleAtoi(name, &index) &&
                          index < place.schema->items.size() && absl::StrCat(index) == name;
    place.schema = is_index ? &place.schema->items[index] : place.schema->Find(name);
    if (place.schema == nullptr) return DoesNotExist(reference);
  }
  return place;
}

}  // namespace tandem
