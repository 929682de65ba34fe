#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/json_value.h"

namespace tandem {

// A schema within a document, and where it stands: "#/$defs/a".
struct SchemaPlace {
  const JsonValue* schema = nullptr;
  std::string pointer;
};

// What references within a document lead to. A schema with an `$id` is a resource of its own: references
// below it are relative to it (RFC 3986), places in them are places in it, and its anchors are its own.
class SchemaReferences {
 public:
  // `root` must outlive this.
  explicit SchemaReferences(const JsonValue* root);

  // `reference`: the value of a `$ref` in the document. InvalidArgument, without a place, if it leads nowhere
  // or out of the document.
  absl::StatusOr<SchemaPlace> Follow(const JsonValue& reference) const;

  // References and names with more bytes are refused.
  static constexpr size_t kMostBytes = 2'048;

 private:
  struct Resource {
    std::string uri;  // Empty if it has none, or one that is too long to refer to.
    SchemaPlace place;
  };

  void Walk(const JsonValue& value, size_t resource, bool is_schema);
  void Name(const JsonValue& schema, absl::string_view id, size_t* resource);
  absl::StatusOr<size_t> ResourceOf(size_t from, absl::string_view uri) const;

  bool draft_4_ = false;  // Or an older one: `id` is what `$id` is later.
  std::string pointer_;   // Of the value that is being looked at.
  std::vector<Resource> resources_;
  std::map<const JsonValue*, size_t> resource_of_;  // Of the values of `$ref`.
  // By address, and by resource and anchor. Without a schema where two have the same.
  std::map<std::string, size_t, std::less<>> by_uri_;
  std::map<std::pair<size_t, std::string>, SchemaPlace> anchors_;
};

// `reference`, as it stands in a document with the address `base`: RFC 3986, section 5.2, without fragments.
// Either may be relative.
std::string ResolvedUri(absl::string_view base, absl::string_view reference);

}  // namespace tandem
