#include "common/grammar/schema/schema_document.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/formats.h"
#include "common/grammar/schema/numbers.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;

// What the value of a keyword must be.
enum class Form : uint8_t {
  kAnnotation,  // Whatever: it says nothing of what is valid.
  kPart,        // A schema for the same value.
  kParts,       // A list of these, not empty.
  kPartMap,     // An object of these.
  kChild,       // A schema for values inside.
  kChildren,    // A list of these.
  kChildMap,    // An object of these.
  kPatternMap,  // An object of these, each for the names that match a pattern.
  kCount,
  kNumber,
  kDivisor,
  kFlag,
  kTexts,
  kTextsMap,
  kPattern,
  kFormat,
  kType,
  kValue,
  kValues,
  kReference,
};

struct Keyword {
  absl::string_view name;
  Form form;
};
constexpr Keyword kKeywords[] = {
    {"$anchor", Form::kAnnotation},
    {"$comment", Form::kAnnotation},
    {"$defs", Form::kAnnotation},
    {"$dynamicAnchor", Form::kAnnotation},
    {"$ref", Form::kReference},
    {"$schema", Form::kAnnotation},
    {"$vocabulary", Form::kAnnotation},
    {"additionalProperties", Form::kChild},
    {"allOf", Form::kParts},
    {"anyOf", Form::kParts},
    {"const", Form::kValue},
    {"contains", Form::kChild},
    {"contentEncoding", Form::kAnnotation},
    {"contentMediaType", Form::kAnnotation},
    {"contentSchema", Form::kAnnotation},
    {"default", Form::kAnnotation},
    {"definitions", Form::kAnnotation},
    {"dependentRequired", Form::kTextsMap},
    {"dependentSchemas", Form::kPartMap},
    {"deprecated", Form::kAnnotation},
    {"description", Form::kAnnotation},
    {"discriminator", Form::kAnnotation},
    {"else", Form::kPart},
    {"enum", Form::kValues},
    {"enumDescriptions", Form::kAnnotation},
    {"enumNames", Form::kAnnotation},
    {"errorMessage", Form::kAnnotation},
    {"example", Form::kAnnotation},
    {"examples", Form::kAnnotation},
    {"exclusiveMaximum", Form::kNumber},
    {"exclusiveMinimum", Form::kNumber},
    {"externalDocs", Form::kAnnotation},
    {"format", Form::kFormat},
    {"if", Form::kPart},
    {"items", Form::kChild},
    {"markdownDescription", Form::kAnnotation},
    {"maxContains", Form::kCount},
    {"maxItems", Form::kCount},
    {"maxLength", Form::kCount},
    {"maxProperties", Form::kCount},
    {"maximum", Form::kNumber},
    {"minContains", Form::kCount},
    {"minItems", Form::kCount},
    {"minLength", Form::kCount},
    {"minProperties", Form::kCount},
    {"minimum", Form::kNumber},
    {"multipleOf", Form::kDivisor},
    {"not", Form::kPart},
    {"nullable", Form::kAnnotation},
    {"oneOf", Form::kParts},
    {"pattern", Form::kPattern},
    {"patternProperties", Form::kPatternMap},
    {"prefixItems", Form::kChildren},
    {"properties", Form::kChildMap},
    {"propertyNames", Form::kChild},
    {"propertyOrdering", Form::kAnnotation},
    {"readOnly", Form::kAnnotation},
    {"required", Form::kTexts},
    {"then", Form::kPart},
    {"title", Form::kAnnotation},
    {"type", Form::kType},
    {"unevaluatedItems", Form::kChild},
    {"unevaluatedProperties", Form::kChild},
    {"uniqueItems", Form::kFlag},
    {"writeOnly", Form::kAnnotation},
    {"xml", Form::kAnnotation},
};
constexpr absl::string_view kTypes[] = {"array", "boolean", "integer", "null", "number", "object", "string"};

bool IsType(const JsonValue& value) {
  return value.Is(Type::kString) &&
         std::find(std::begin(kTypes), std::end(kTypes), value.text) != std::end(kTypes);
}

bool AreTexts(const JsonValue& value) {
  return value.Is(Type::kArray) && std::all_of(value.items.begin(), value.items.end(),
                                               [](const JsonValue& item) { return item.Is(Type::kString); });
}

// For messages.
std::string Shown(const JsonValue& value) {
  switch (value.type) {
    case Type::kString:
      return absl::StrCat("\"", PrintableText(value.text), "\"");
    case Type::kNumber:
      return PrintableText(value.text);
    case Type::kBoolean:
      return value.boolean ? "true" : "false";
    case Type::kNull:
      return "null";
    case Type::kArray:
      return absl::StrCat("a list of ", value.items.size());
    case Type::kObject:
      break;
  }
  return "an object";
}

// "a%20b~1c" of a URI's fragment is "a b/c".
absl::StatusOr<std::string> Unescaped(absl::string_view part) {
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
  return absl::StrReplaceAll(text, {{"~1", "/"}, {"~0", "~"}});
}

}  // namespace

std::string Below(absl::string_view place, absl::string_view name) {
  return absl::StrCat(place, "/", PrintableText(absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}})));
}

absl::Status InvalidAt(absl::string_view place, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
}

absl::Status At(absl::string_view place, const absl::Status& status) {
  if (absl::StartsWith(status.message(), "#")) return status;
  return absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
}

// One walk over a schema and all that it refers to.
class SchemaReader {
 public:
  explicit SchemaReader(SchemaDocument* document) : document_(*document) {}

  absl::Status Read() {
    Visit(document_.root_, "#");
    while (!open_.empty()) {
      const auto [schema, place] = open_.front();
      open_.pop_front();
      TANDEM_RETURN_IF_ERROR(ReadSchema(*schema, place));
    }
    return CheckParts();
  }

 private:
  void Visit(const JsonValue& schema, const std::string& place) {
    if (places_.emplace(&schema, place).second) open_.emplace_back(&schema, place);
  }
  void VisitPart(const JsonValue& whole, const JsonValue& part, const std::string& place) {
    parts_[&whole].push_back(&part);
    Visit(part, place);
  }

  absl::Status ReadSchema(const JsonValue& schema, const std::string& place) {
    if (schema.Is(Type::kBoolean)) return absl::OkStatus();
    if (!schema.Is(Type::kObject)) return InvalidAt(place, "expected a schema: an object, true or false");
    for (const auto& [name, value] : schema.members) {
      if (absl::StartsWith(name, "x-")) continue;
      const std::string at = Below(place, name);
      if (name == "$id") {
        // It would change what references below it mean.
        if (&schema != &document_.root_) return InvalidAt(at, "not supported inside a schema");
        continue;
      }
      const auto known = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                      [&name = name](const Keyword& one) { return one.name == name; });
      if (known == std::end(kKeywords)) return InvalidAt(at, "not supported");
      TANDEM_RETURN_IF_ERROR(ReadKeyword(schema, known->form, value, at));
    }
    return absl::OkStatus();
  }

  absl::Status ReadKeyword(const JsonValue& schema, Form form, const JsonValue& value,
                           const std::string& at) {
    switch (form) {
      case Form::kAnnotation:
      case Form::kValue:
        return absl::OkStatus();
      case Form::kPart:
        VisitPart(schema, value, at);
        return absl::OkStatus();
      case Form::kChild:
        Visit(value, at);
        return absl::OkStatus();
      case Form::kParts:
      case Form::kChildren:
        if (!value.Is(Type::kArray) || value.items.empty()) {
          return InvalidAt(at, "expected a list that is not empty");
        }
        for (size_t i = 0; i < value.items.size(); ++i) {
          const std::string place = absl::StrCat(at, "/", i);
          form == Form::kParts ? VisitPart(schema, value.items[i], place) : Visit(value.items[i], place);
        }
        return absl::OkStatus();
      case Form::kPartMap:
      case Form::kChildMap:
      case Form::kPatternMap:
        if (!value.Is(Type::kObject)) return InvalidAt(at, "expected an object");
        for (const auto& [name, member] : value.members) {
          if (form == Form::kPatternMap) TANDEM_RETURN_IF_ERROR(ReadPattern(name, Below(at, name)));
          form == Form::kPartMap ? VisitPart(schema, member, Below(at, name))
                                 : Visit(member, Below(at, name));
        }
        return absl::OkStatus();
      case Form::kReference:
        return ReadReference(schema, value, at);
      default:
        return ReadPlain(form, value, at);
    }
  }

  // What has no schemas inside.
  absl::Status ReadPlain(Form form, const JsonValue& value, const std::string& at) {
    switch (form) {
      case Form::kCount:
      case Form::kNumber:
      case Form::kDivisor:
        return ReadNumber(form, value, at);
      case Form::kFlag:
        return value.Is(Type::kBoolean) ? absl::OkStatus() : InvalidAt(at, "expected true or false");
      case Form::kTexts:
        return AreTexts(value) ? absl::OkStatus() : InvalidAt(at, "expected a list of texts");
      case Form::kTextsMap:
        if (!value.Is(Type::kObject)) return InvalidAt(at, "expected an object");
        for (const auto& [name, texts] : value.members) {
          if (!AreTexts(texts)) return InvalidAt(Below(at, name), "expected a list of texts");
        }
        return absl::OkStatus();
      case Form::kPattern:
        if (!value.Is(Type::kString)) return InvalidAt(at, "expected a text");
        return ReadPattern(value.text, at);
      case Form::kFormat:
        if (!value.Is(Type::kString)) return InvalidAt(at, "expected a text");
        return absl::OkStatus();
      case Form::kType: {
        const std::vector<JsonValue> one = {value};
        const std::vector<JsonValue>& types = value.Is(Type::kArray) ? value.items : one;
        if (types.empty()) return InvalidAt(at, "expected at least one type");
        for (const JsonValue& type : types) {
          if (!IsType(type)) return InvalidAt(at, absl::StrCat(Shown(type), " is not a type"));
        }
        return absl::OkStatus();
      }
      case Form::kValues:
        if (value.Is(Type::kArray) && !value.items.empty()) return absl::OkStatus();
        return InvalidAt(at, "expected a list that is not empty");
      default:
        return absl::OkStatus();
    }
  }

  absl::Status ReadNumber(Form form, const JsonValue& value, const std::string& at) {
    if (!value.Is(Type::kNumber)) {
      return InvalidAt(at,
                       form == Form::kCount ? "expected a number of them, 0 or more" : "expected a number");
    }
    const absl::StatusOr<std::string> plain = PlainDecimal(value.text);
    if (!plain.ok()) return At(at, plain.status());
    const bool negative = absl::StartsWith(*plain, "-");
    if (form == Form::kCount && (negative || absl::StrContains(*plain, '.'))) {
      return InvalidAt(at, "expected a number of them, 0 or more");
    }
    if (form == Form::kDivisor && (negative || *plain == "0"))
      return InvalidAt(at, "expected a number above 0");
    return absl::OkStatus();
  }

  absl::Status ReadPattern(const std::string& text, const std::string& at) {
    if (document_.patterns_.contains(text)) return absl::OkStatus();
    absl::StatusOr<Pattern> pattern = Pattern::Parse(text);
    if (!pattern.ok()) return At(at, pattern.status());
    document_.patterns_.emplace(text, *std::move(pattern));
    return absl::OkStatus();
  }

  absl::Status ReadReference(const JsonValue& schema, const JsonValue& value, const std::string& at) {
    if (!value.Is(Type::kString)) return InvalidAt(at, "expected a text");
    const std::string& reference = value.text;
    const absl::string_view within = WithinDocument(reference);
    if (!absl::StartsWith(within, "#")) {
      return InvalidAt(at, "expected a place in this schema, as #/$defs/NAME");
    }
    const JsonValue* target = &document_.root_;
    if (within.size() > 1 && within[1] != '/') {
      TANDEM_RETURN_IF_ERROR(FindAnchors());
      const auto anchor = anchors_.find(within.substr(1));
      if (anchor == anchors_.end()) {
        return InvalidAt(at, absl::StrCat(PrintableText(reference), " does not exist"));
      }
      target = anchor->second;
    } else if (within.size() > 1) {
      for (const absl::string_view part : absl::StrSplit(within.substr(2), '/')) {
        const absl::StatusOr<std::string> name = Unescaped(part);
        if (!name.ok()) return At(at, name.status());
        size_t index = 0;
        const bool is_index = target->Is(Type::kArray) && absl::SimpleAtoi(*name, &index) &&
                              index < target->items.size() && absl::StrCat(index) == *name;
        target = is_index ? &target->items[index] : target->Find(*name);
        if (target == nullptr) {
          return InvalidAt(at, absl::StrCat(PrintableText(reference), " does not exist"));
        }
      }
    }
    document_.targets_.emplace(reference, SchemaDocument::Place{target, PrintableText(within)});
    VisitPart(schema, *target, std::string(within));
    return absl::OkStatus();
  }

  // A reference without the document's own address, if it begins with that.
  absl::string_view WithinDocument(absl::string_view reference) const {
    const JsonValue* const id = document_.root_.Find("$id");
    if (id == nullptr || !id->Is(Type::kString) || id->text.empty()) return reference;
    absl::string_view rest = reference;
    if (!absl::ConsumePrefix(&rest, absl::StripSuffix(id->text, "#"))) return reference;
    return rest.empty() ? absl::string_view("#") : rest;
  }

  // Where the schemas are that `$anchor` gives names. Values that are no schemas are not looked into.
  absl::Status FindAnchors() {
    if (std::exchange(found_anchors_, true)) return absl::OkStatus();
    std::vector<const JsonValue*> open = {&document_.root_};
    while (!open.empty()) {
      const JsonValue& value = *open.back();
      open.pop_back();
      for (const JsonValue& item : value.items) open.push_back(&item);
      for (const auto& [name, member] : value.members) {
        if (name == "$anchor" && member.Is(Type::kString) && !anchors_.emplace(member.text, &value).second) {
          return InvalidAt("#", absl::StrCat("two schemas have the $anchor ", PrintableText(member.text)));
        }
        constexpr absl::string_view kValues[] = {"const", "default", "enum", "example", "examples"};
        if (std::find(std::begin(kValues), std::end(kValues), name) == std::end(kValues)) {
          open.push_back(&member);
        }
      }
    }
    return absl::OkStatus();
  }

  // A schema that is part of itself says nothing that one could hold a value to.
  absl::Status CheckParts() const {
    std::map<const JsonValue*, size_t> waits;  // For so many wholes that are not done.
    for (const auto& [whole, parts] : parts_) {
      for (const JsonValue* part : parts) ++waits[part];
    }
    std::vector<const JsonValue*> done;
    for (const auto& [schema, place] : places_) {
      if (!waits.contains(schema)) done.push_back(schema);
    }
    for (size_t i = 0; i < done.size(); ++i) {
      const auto parts = parts_.find(done[i]);
      if (parts == parts_.end()) continue;
      for (const JsonValue* part : parts->second) {
        if (--waits[part] == 0) done.push_back(part);
      }
    }
    if (done.size() == places_.size()) return absl::OkStatus();
    std::set<std::string> circle;
    for (const auto& [schema, place] : places_) {
      if (waits.contains(schema) && waits[schema] > 0) circle.insert(place);
    }
    return InvalidAt(*circle.begin(), "part of itself, with nothing in between");
  }

  SchemaDocument& document_;
  std::deque<std::pair<const JsonValue*, std::string>> open_;  // Still to be looked at.
  std::map<const JsonValue*, std::string> places_;
  std::map<const JsonValue*, std::vector<const JsonValue*>> parts_;
  std::map<std::string, const JsonValue*, std::less<>> anchors_;
  bool found_anchors_ = false;
};

absl::StatusOr<std::unique_ptr<const SchemaDocument>> SchemaDocument::Read(absl::string_view text,
                                                                           size_t max_depth) {
  auto document = std::make_unique<SchemaDocument>();
  TANDEM_ASSIGN_OR_RETURN(document->root_, ParseJsonValue(text, max_depth));
  TANDEM_RETURN_IF_ERROR(SchemaReader(document.get()).Read());
  return std::unique_ptr<const SchemaDocument>(std::move(document));
}

}  // namespace tandem
