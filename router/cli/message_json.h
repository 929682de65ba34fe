#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace tandem::cli {

// A message as JSON with the field names of the .proto file, including fields with default values, and a line
// end.
std::string MessageJson(const google::protobuf::Message& message, bool pretty);

}  // namespace tandem::cli
