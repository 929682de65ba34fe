#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace tandem {

// The first field of kind `string` in the encoded message `bytes` of type `type`, messages in it included,
// that is not UTF-8, as in "chat.messages[2].content"; nothing when there is none, and when `bytes` are no
// such message. Of a field that stands there several times, and is not repeated, each counts.
//
// Protobuf refuses such a message whole and tells the program nothing but that. Time and memory are those of
// reading the message.
std::optional<std::string> FieldThatIsNotUtf8(const google::protobuf::Descriptor& type,
                                              absl::string_view bytes);

}  // namespace tandem
