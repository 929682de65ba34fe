#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace tandem {

// The path of the first `string` field that is not UTF-8 in the encoded message `bytes` of type `type`,
// including nested messages, such as "chat.messages[2].content". nullopt if there is none, or if `bytes` is
// no such message. If a field that is not repeated occurs several times, each occurrence is checked.
//
// Protobuf refuses such a message without saying which field is wrong. Takes time and memory like reading the
// message.
std::optional<std::string> FieldThatIsNotUtf8(const google::protobuf::Descriptor& type,
                                              absl::string_view bytes);

}  // namespace tandem
