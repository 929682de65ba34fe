#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace tandem {

// Reads a YAML document into `out`, which is cleared first, by reflection: keys are the message's field
// names.
//
// - bool: true, false; integers and floats: plain numbers in range; strings: text, quoted if YAML would read
//   it as a number, a boolean or nothing. Enums: a value's name, or its name without the enum's prefix, in
//   any case. Repeated fields: sequences; map fields: mappings. An empty value leaves a message, repeated or
//   map field empty, and is an error elsewhere.
// - Errors are InvalidArgument and read "router.yaml:12:3: tenants[0].drafer: unknown key, did you mean
//   "drafter"?". They cover syntax errors, unknown and duplicate keys, wrong types, numbers out of range, and
//   two members of a oneof.
// - Bounded, whatever the text: 1 MiB, 32 levels, 100,000 values after aliases are followed, one document.
//
// `path`: for messages. After an error, `out` is empty or partly filled.
absl::Status ParseYaml(absl::string_view text, absl::string_view path, google::protobuf::Message* out);

// ParseYaml of a file's content.
absl::Status ReadYamlFile(const std::string& path, google::protobuf::Message* out);

}  // namespace tandem
