#include "common/grammar/finite_schema.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using nlohmann::json;

std::string WithoutPercents(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '%' && i + 2 < text.size() && absl::SimpleHexAtoi(text.substr(i + 1, 2), &code)) {
      plain.push_back(static_cast<char>(code));
      i += 2;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

// Schemas and what each needs to have a finite value: all, or one, of others.
class Needs {
 public:
  explicit Needs(const json& root) : root_(root) {}

  absl::Status Check() {
    const size_t root = NodeOf(root_, "#");
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
    const json* schema;
    size_t node;
  };

  size_t Add(Node node) {
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }
  size_t NodeOf(const json& schema, const std::string& place) {
    const auto [found, is_new] = known_.try_emplace(&schema, nodes_.size());
    if (is_new) {
      Add({.needs_one = false, .needed = {}, .place = place});
      schemas_.push_back({.schema = &schema, .node = found->second});
    }
    return found->second;
  }
  static std::string Member(absl::string_view place, absl::string_view name) {
    return absl::StrCat(place, "/", PrintableText(name));
  }

  // Where a reference leads and its place there; null if that is nowhere here, which others complain about.
  std::pair<const json*, std::string> Follow(const json& reference) const {
    if (!reference.is_string() || !absl::StartsWith(reference.get_ref<const std::string&>(), "#")) return {};
    const std::string path = WithoutPercents(reference.get_ref<const std::string&>()).substr(1);
    const json* at = &root_;
    for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
      const std::string name = absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}});
      size_t index = 0;
      if (at->is_object() && at->contains(name)) {
        at = &at->at(name);
      } else if (at->is_array() && absl::SimpleAtoi(name, &index) && index < at->size()) {
        at = &at->at(index);
      } else {
        return {};
      }
    }
    return {at, absl::StrCat("#", PrintableText(path))};
  }

  void AddNeeds(size_t index) {
    const json& schema = *schemas_[index].schema;
    const size_t node = schemas_[index].node;
    const std::string place = nodes_[node].place;
    if (!schema.is_object()) return;
    std::vector<size_t> needed;
    if (const auto reference = schema.find("$ref"); reference != schema.end()) {
      const auto [target, where] = Follow(*reference);
      if (target != nullptr) needed.push_back(NodeOf(*target, where));
    }
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      const auto list = schema.find(keyword);
      if (list == schema.end() || !list->is_array() || list->empty()) continue;
      Node branches{.needs_one = absl::string_view(keyword) != "allOf", .needed = {}, .place = {}};
      for (size_t i = 0; i < list->size(); ++i) {
        branches.needed.push_back(NodeOf((*list)[i], absl::StrCat(place, "/", keyword, "/", i)));
      }
      needed.push_back(Add(std::move(branches)));
    }
    if (const std::optional<size_t> value = AddTypes(schema, place); value.has_value()) {
      needed.push_back(*value);
    }
    nodes_[node].needed = std::move(needed);
  }

  // What the types need, one of which suffices; nothing if one of them has values without parts.
  std::optional<size_t> AddTypes(const json& schema, const std::string& place) {
    const auto type = schema.find("type");
    if (type == schema.end() || schema.contains("const") || schema.contains("enum")) return std::nullopt;
    const json types = type->is_array() ? *type : json::array({*type});
    Node kinds{.needs_one = true, .needed = {}, .place = {}};
    for (const json& name : types) {
      if (name == "object") {
        kinds.needed.push_back(
            Add({.needs_one = false, .needed = NeededMembers(schema, place), .place = {}}));
      } else if (name == "array") {
        kinds.needed.push_back(Add({.needs_one = false, .needed = NeededItems(schema, place), .place = {}}));
      } else {
        return std::nullopt;
      }
    }
    if (kinds.needed.empty()) return std::nullopt;
    return Add(std::move(kinds));
  }

  std::vector<size_t> NeededMembers(const json& schema, const std::string& place) {
    std::vector<size_t> needed;
    const auto required = schema.find("required");
    const auto properties = schema.find("properties");
    if (required == schema.end() || !required->is_array()) return needed;
    for (const json& name : *required) {
      if (!name.is_string() || properties == schema.end() || !properties->is_object()) continue;
      const auto member = properties->find(name.get_ref<const std::string&>());
      if (member == properties->end()) continue;
      needed.push_back(NodeOf(*member, Member(place + "/properties", member.key())));
    }
    return needed;
  }

  std::vector<size_t> NeededItems(const json& schema, const std::string& place) {
    std::vector<size_t> needed;
    const auto least = schema.find("minItems");
    if (least == schema.end() || !least->is_number() || least->get<double>() < 1) return needed;
    const auto first = schema.find("prefixItems");
    const size_t num_first = first != schema.end() && first->is_array() ? first->size() : 0;
    for (size_t i = 0; i < num_first && static_cast<double>(i) < least->get<double>(); ++i) {
      needed.push_back(NodeOf((*first)[i], absl::StrCat(place, "/prefixItems/", i)));
    }
    const auto items = schema.find("items");
    if (items != schema.end() && least->get<double>() > static_cast<double>(num_first)) {
      needed.push_back(NodeOf(*items, place + "/items"));
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

  const json& root_;
  std::vector<Node> nodes_;
  std::vector<Schema> schemas_;
  std::map<const json*, size_t> known_;
  std::vector<size_t> missing_;  // How many others a node still waits for.
};

}  // namespace

absl::Status CheckFiniteSchema(const json& schema) {
  return Needs(schema).Check();
}

}  // namespace tandem
