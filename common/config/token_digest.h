#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(absl::string_view bytes);

// A tenant's token in a configuration: "SALT:DIGEST" in hex, with DIGEST = SHA-256(salt + SHA-256(token)), or
// only DIGEST = SHA-256(token). The salt protects against precomputed tables, even for tokens that people
// choose. The digest is cheap to compute, because every call is checked.
struct TokenDigest {
  std::string salt;  // kSaltBytes, or none.
  Sha256Digest digest{};

  static constexpr size_t kSaltBytes = 16;

  // Whether the digest belongs to the token with this SHA-256. Constant time.
  bool Matches(const Sha256Digest& token) const;
  std::string Text() const;
};

// InvalidArgument says what was expected, and does not contain the text.
absl::StatusOr<TokenDigest> ParseTokenDigest(absl::string_view text);

// `salt` has kSaltBytes random bytes, or none.
TokenDigest DigestToken(absl::string_view token, std::string salt);

}  // namespace tandem
