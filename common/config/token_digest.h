#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(absl::string_view bytes);

// A tenant's token as configurations hold it: "SALT:DIGEST" in hex, with DIGEST = SHA-256(salt +
// SHA-256(token)), or DIGEST = SHA-256(token) alone. A salt makes the text useless to look tokens up by, even
// where people choose them; it is cheap to check, because tokens are checked with every call.
struct TokenDigest {
  std::string salt;  // kSaltBytes, or none.
  Sha256Digest digest{};

  static constexpr size_t kSaltBytes = 16;

  // Whether it is the token whose SHA-256 is given. Takes as long for every answer.
  bool Matches(const Sha256Digest& token) const;
  std::string Text() const;
};

// InvalidArgument says what was expected, and nothing of the text.
absl::StatusOr<TokenDigest> ParseTokenDigest(absl::string_view text);

// `salt` has kSaltBytes random bytes, or none.
TokenDigest DigestToken(absl::string_view token, std::string salt);

}  // namespace tandem
