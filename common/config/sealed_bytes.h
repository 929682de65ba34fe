#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A seal in front of a Protobuf message detects truncation and changed bytes, which Protobuf itself often
// does not notice:
//
//   FA 7C 30 | "TNDMSEAL" | size of the message, 8 bytes, little-endian | SHA-256 of the message
//
// The first three bytes are those that Protobuf writes before a field of 48 bytes with the number kSealField,
// which no message has. So versions of Tandem without seals can read sealed messages too: they skip this
// field.
inline constexpr int kSealField = 1999;

std::string Seal(absl::string_view message);

// The message within `bytes`: after the seal, or all of `bytes` if there is no seal, as versions without
// seals wrote it. DataLoss if the seal does not match the rest, such as "47 bytes of 1093, so it was cut
// short".
absl::StatusOr<absl::string_view> Unseal(absl::string_view bytes);

}  // namespace tandem
