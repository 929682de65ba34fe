#include "common/grammar/finite_schema.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/json_value.h"
#include "common/grammar/schema/schema_cases.h"
#include "common/grammar/schema/schema_document.h"

namespace tandem {
namespace {

using Type = JsonValue::Type;

// Schemas and what each needs to have a finite value: all, or one, of others.
class Needs {
 public:
  explicit Needs(const SchemaDocument* document) : document_(*document) {}

  absl::Status Check() {
    const size_t root = NodeOf(document_.root(), "#");
    // Those that are met on the way are appended.
    for (size_t i = 0; i < schemas_.size(); ++i) AddNeeds(i);
    FindFinite();
    if (missing_[root] == 0) return absl::OkStatus();
    return Endless(root);
  }

 private:
  struct Node {
    bool needs_one = false;  // Of the others; else it needs all.
    std::vector<size_t> needed;
    std::string place;  // Empty: the place is that of the schema around it.
  };
  struct Schema {
    const JsonValue* schema;
    size_t node;
  };

  size_t Add(Node node) {
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }
  size_t NodeOf(const JsonValue& schema, const std::string& place) {
    const auto [found, is_new] = known_.try_emplace(&schema, nodes_.size());
    if (is_new) {
      Add({.needs_one = false, .needed = {}, .place = place});
      schemas_.push_back({.schema = &schema, .node = found->second});
    }
    return found->second;
  }
  void AddNeeds(size_t index) {
    const JsonValue& schema = *schemas_[index].schema;
    const size_t node = schemas_[index].node;
    const std::string place = nodes_[node].place;
    std::vector<size_t> needed;
    if (const JsonValue* const reference = schema.Find("$ref"); reference != nullptr) {
      const SchemaPlace& target = document_.Target(*reference);
      needed.push_back(NodeOf(*target.schema, target.pointer));
    }
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      const JsonValue* const list = schema.Find(keyword);
      if (list == nullptr) continue;
      Node branches{.needs_one = absl::string_view(keyword) != "allOf", .needed = {}, .place = {}};
      for (size_t i = 0; i < list->items.size(); ++i) {
        branches.needed.push_back(NodeOf(list->items[i], absl::StrCat(place, "/", keyword, "/", i)));
      }
      needed.push_back(Add(std::move(branches)));
    }
    if (const std::optional<size_t> value = AddTypes(schema, place); value.has_value()) {
      needed.push_back(*value);
    }
    nodes_[node].needed = std::move(needed);
  }

  // What the types need, one of which suffices; nothing if one of them has values without parts.
  std::optional<size_t> AddTypes(const JsonValue& schema, const std::string& place) {
    const JsonValue* const type = schema.Find("type");
    if (type == nullptr || schema.Find("const") != nullptr || schema.Find("enum") != nullptr)
      return std::nullopt;
    const std::vector<JsonValue> one = {*type};
    Node kinds{.needs_one = true, .needed = {}, .place = {}};
    for (const JsonValue& name : type->Is(Type::kArray) ? type->items : one) {
      if (name.text == "object") {
        kinds.needed.push_back(
            Add({.needs_one = false, .needed = NeededMembers(schema, place), .place = {}}));
      } else if (name.text == "array") {
        kinds.needed.push_back(Add({.needs_one = false, .needed = NeededItems(schema, place), .place = {}}));
      } else {
        return std::nullopt;
      }
    }
    if (kinds.needed.empty()) return std::nullopt;
    return Add(std::move(kinds));
  }

  std::vector<size_t> NeededMembers(const JsonValue& schema, const std::string& place) {
    std::vector<size_t> needed;
    const JsonValue* const required = schema.Find("required");
    const JsonValue* const properties = schema.Find("properties");
    if (required == nullptr || properties == nullptr) return needed;
    for (const JsonValue& name : required->items) {
      const JsonValue* const member = properties->Find(name.text);
      if (member == nullptr) continue;
      needed.push_back(NodeOf(*member, Below(place + "/properties", name.text)));
    }
    return needed;
  }

  std::vector<size_t> NeededItems(const JsonValue& schema, const std::string& place) {
    std::vector<size_t> needed;
    const JsonValue* const count = schema.Find("minItems");
    const size_t least = count == nullptr ? 0 : CountOf(*count);
    const ListItems list = ItemsOf(schema);
    const size_t num_first = list.first == nullptr ? 0 : list.first->items.size();
    for (size_t i = 0; i < std::min(num_first, least); ++i) {
      needed.push_back(NodeOf(list.first->items[i], absl::StrCat(Below(place, list.first_name), "/", i)));
    }
    if (list.rest != nullptr && least > num_first) {
      needed.push_back(NodeOf(*list.rest, Below(place, list.rest_name)));
    }
    return needed;
  }

  void FindFinite() {
    missing_.resize(nodes_.size());
    std::vector<std::vector<size_t>> waiting(nodes_.size());
    std::vector<size_t> finite;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      const std::vector<size_t>& needed = nodes_[node].needed;
      for (const size_t other : needed) waiting[other].push_back(node);
      missing_[node] = nodes_[node].needs_one ? std::min(needed.size(), size_t{1}) : needed.size();
      if (missing_[node] == 0) finite.push_back(node);
    }
    while (!finite.empty()) {
      const size_t node = finite.back();
      finite.pop_back();
      for (const size_t waiter : waiting[node]) {
        if (missing_[waiter] > 0 && --missing_[waiter] == 0) finite.push_back(waiter);
      }
    }
  }

  // Names the schema that an endless one comes back to.
  absl::Status Endless(size_t node) const {
    std::vector<bool> seen(nodes_.size(), false);
    while (!seen[node] || nodes_[node].place.empty()) {
      seen[node] = true;
      const std::vector<size_t>& needed = nodes_[node].needed;
      node = *std::find_if(needed.begin(), needed.end(), [&](size_t other) { return missing_[other] > 0; });
    }
    return absl::InvalidArgumentError(absl::StrCat(
        nodes_[node].place, ": its values always contain another one, so that no finite value satisfies it"));
  }

  const SchemaDocument& document_;
  std::vector<Node> nodes_;
  std::vector<Schema> schemas_;
  std::map<const JsonValue*, size_t> known_;
  std::vector<size_t> missing_;  // How many others a node still waits for.
};

}  // namespace

absl::Status CheckFiniteSchema(const SchemaDocument& schema) {
  return Needs(&schema).Check();
}

}  // namespace tandem
