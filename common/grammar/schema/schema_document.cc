#include "common/grammar/schema/schema_document.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/grammar/schema/formats.h"
#include "common/grammar/schema/numbers.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;

// What the value of a keyword must be.
enum class Form : uint8_t {
  kAnnotation,    // Whatever: it says nothing of what is valid.
  kPart,          // A schema for the same value.
  kParts,         // A list of these, not empty.
  kPartMap,       // An object of these.
  kChild,         // A schema for values inside.
  kChildren,      // A list of these.
  kChildMap,      // An object of these.
  kPatternMap,    // An object of these, each for the names that match a pattern.
  kItems,         // A schema for values inside, or a list of these for one after the other.
  kOtherItems,    // A schema for those behind such a list.
  kDependencies,  // An object of schemas for the same value and of lists of names.
  kCount,
  kNumber,
  kLimit,  // A number, or whether that of another keyword is left out.
  kName,
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
    {"$id", Form::kName},
    {"$ref", Form::kReference},
    {"$schema", Form::kAnnotation},
    {"$vocabulary", Form::kAnnotation},
    {"additionalItems", Form::kOtherItems},
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
    {"dependencies", Form::kDependencies},
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
    {"exclusiveMaximum", Form::kLimit},
    {"exclusiveMinimum", Form::kLimit},
    {"externalDocs", Form::kAnnotation},
    {"format", Form::kFormat},
    {"id", Form::kName},
    {"if", Form::kPart},
    {"items", Form::kItems},
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

}  // namespace

std::string Below(absl::string_view place, absl::string_view name) {
  return absl::StrCat(place, "/", PrintableText(absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}})));
}

ListItems ItemsOf(const JsonValue& schema) {
  const JsonValue* const items = schema.Find("items");
  if (items != nullptr && items->Is(Type::kArray)) {
    return {items, "items", schema.Find("additionalItems"), "additionalItems"};
  }
  return {schema.Find("prefixItems"), "prefixItems", items, "items"};
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
  explicit SchemaReader(SchemaDocument* document) : document_(*document), references_(&document->root_) {}

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
    TANDEM_RETURN_IF_ERROR(CheckSpellings(schema, place));
    for (const auto& [name, value] : schema.members) {
      if (absl::StartsWith(name, "x-")) continue;
      const std::string at = Below(place, name);
      const auto known = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                      [&name = name](const Keyword& one) { return one.name == name; });
      if (known == std::end(kKeywords)) return InvalidAt(at, "not supported");
      TANDEM_RETURN_IF_ERROR(ReadKeyword(schema, known->form, value, at));
    }
    return absl::OkStatus();
  }

  // Spellings of older drafts beside those of today that say something else.
  static absl::Status CheckSpellings(const JsonValue& schema, const std::string& place) {
    const ListItems list = ItemsOf(schema);
    if (schema.Find("prefixItems") != nullptr) {
      if (list.first_name != "prefixItems") {
        return InvalidAt(Below(place, "items"), "expected a schema beside prefixItems, or a list without it");
      }
      if (schema.Find("additionalItems") != nullptr) {
        return InvalidAt(Below(place, "additionalItems"), "expected items in its place beside prefixItems");
      }
    }
    for (const auto& [flag, limit] :
         {std::pair("exclusiveMinimum", "minimum"), std::pair("exclusiveMaximum", "maximum")}) {
      const JsonValue* const exclusive = schema.Find(flag);
      if (exclusive != nullptr && exclusive->IsBoolean(true) && schema.Find(limit) == nullptr) {
        return InvalidAt(Below(place, flag), absl::StrCat("expected a number, or ", limit, " beside true"));
      }
    }
    const JsonValue* const id = schema.Find("id");
    const JsonValue* const new_id = schema.Find("$id");
    if (id != nullptr && new_id != nullptr && !AreEqual(*id, *new_id)) {
      return InvalidAt(Below(place, "id"), "another one than $id");
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
      case Form::kItems:
        if (!value.Is(Type::kArray)) {
          Visit(value, at);
          return absl::OkStatus();
        }
        for (size_t i = 0; i < value.items.size(); ++i) Visit(value.items[i], absl::StrCat(at, "/", i));
        return absl::OkStatus();
      case Form::kOtherItems:
        // Without a list in front it says nothing.
        if (&value == ItemsOf(schema).rest) Visit(value, at);
        return absl::OkStatus();
      case Form::kDependencies:
        if (!value.Is(Type::kObject)) return InvalidAt(at, "expected an object");
        for (const auto& [name, needs] : value.members) {
          if (!needs.Is(Type::kArray)) {
            VisitPart(schema, needs, Below(at, name));
          } else if (!AreTexts(needs)) {
            return InvalidAt(Below(at, name), "expected a list of texts or a schema");
          }
        }
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
      case Form::kLimit:
        if (value.Is(Type::kBoolean)) return absl::OkStatus();
        return ReadNumber(form, value, at);
      case Form::kCount:
      case Form::kNumber:
      case Form::kDivisor:
        return ReadNumber(form, value, at);
      case Form::kName:
        return value.Is(Type::kString) ? absl::OkStatus() : InvalidAt(at, "expected a text");
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
    absl::StatusOr<SchemaPlace> target = references_.Follow(value);
    if (!target.ok()) return InvalidAt(at, target.status().message());
    VisitPart(schema, *target->schema, target->pointer);
    document_.targets_.emplace(&value, *std::move(target));
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
  const SchemaReferences references_;
  std::deque<std::pair<const JsonValue*, std::string>> open_;  // Still to be looked at.
  std::map<const JsonValue*, std::string> places_;
  std::map<const JsonValue*, std::vector<const JsonValue*>> parts_;
};

absl::StatusOr<std::unique_ptr<const SchemaDocument>> SchemaDocument::Read(absl::string_view text,
                                                                           size_t max_depth) {
  auto document = std::make_unique<SchemaDocument>();
  TANDEM_ASSIGN_OR_RETURN(document->root_, ParseJsonValue(text, max_depth));
  TANDEM_RETURN_IF_ERROR(SchemaReader(document.get()).Read());
  return std::unique_ptr<const SchemaDocument>(std::move(document));
}

}  // namespace tandem
