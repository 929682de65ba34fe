#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace tandem::cli {

// One of our messages as JSON with the names of the .proto file, fields that have their default value
// included, and a line end.
std::string MessageJson(const google::protobuf::Message& message, bool pretty);

}  // namespace tandem::cli
