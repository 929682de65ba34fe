#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A seal in front of a Protobuf message tells a whole one from one that was cut short or has another byte
// somewhere, which Protobuf itself often takes for a message:
//
//   FA 7C 30 | "TNDMSEAL" | size of the message, 8 bytes, little-endian | SHA-256 of the message
//
// The first three bytes are what Protobuf writes before a field of 48 bytes with the number kSealField, which
// no message has. So versions of Tandem that know no seals read what is sealed as well, and skip it.
inline constexpr int kSealField = 1999;

std::string Seal(absl::string_view message);

// The message, which is part of `bytes`: behind the seal, or all of `bytes` when there is none, as versions
// without seals wrote it. DataLoss when the seal does not fit what follows it, such as "47 bytes of 1093,
// so it was cut short".
absl::StatusOr<absl::string_view> Unseal(absl::string_view bytes);

}  // namespace tandem
