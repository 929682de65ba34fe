#include "common/config/token_digest.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/config/secret.h"

namespace tandem {
namespace {

absl::string_view Bytes(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

struct FreeDigestContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// Hashes the concatenation of the two. OpenSSL needs several times as long to look up the algorithm as to
// hash a token, and a new token is tried with every salt, so the algorithm is looked up once.
Sha256Digest Sha256OfBoth(absl::string_view first, absl::string_view second) {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  thread_local const std::unique_ptr<EVP_MD_CTX, FreeDigestContext> context(EVP_MD_CTX_new());
  Sha256Digest digest;
  if (algorithm != nullptr && context != nullptr &&
      EVP_DigestInit_ex(context.get(), algorithm, nullptr) == 1 &&
      EVP_DigestUpdate(context.get(), first.data(), first.size()) == 1 &&
      EVP_DigestUpdate(context.get(), second.data(), second.size()) == 1 &&
      EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1) {
    return digest;
  }
  // Without memory or with an unusual configuration of OpenSSL; this needs neither.
  const std::string both = absl::StrCat(first, second);
  SHA256(reinterpret_cast<const unsigned char*>(both.data()), both.size(), digest.data());
  return digest;
}

Sha256Digest Salted(const std::string& salt, const Sha256Digest& token) {
  return salt.empty() ? token : Sha256OfBoth(salt, Bytes(token));
}

bool IsHex(absl::string_view text, size_t num_bytes) {
  return text.size() == 2 * num_bytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
}

}  // namespace

Sha256Digest Sha256(absl::string_view bytes) {
  return Sha256OfBoth(bytes, "");
}

bool TokenDigest::Matches(const Sha256Digest& token) const {
  const Sha256Digest salted = Salted(salt, token);
  return EqualInConstantTime(Bytes(salted), Bytes(digest));
}

std::string TokenDigest::Text() const {
  const std::string hex = absl::BytesToHexString(Bytes(digest));
  return salt.empty() ? hex : absl::StrCat(absl::BytesToHexString(salt), ":", hex);
}

absl::StatusOr<TokenDigest> ParseTokenDigest(absl::string_view text) {
  TokenDigest parsed;
  const size_t colon = text.find(':');
  const absl::string_view digest = colon == absl::string_view::npos ? text : text.substr(colon + 1);
  if (colon != absl::string_view::npos) {
    if (!IsHex(text.substr(0, colon), TokenDigest::kSaltBytes)) {
      return absl::InvalidArgumentError(absl::StrCat("expected ", 2 * TokenDigest::kSaltBytes,
                                                     " hexadecimal digits of salt before the colon, found ",
                                                     colon, " characters; use `tandem hash-token`"));
    }
    parsed.salt = absl::HexStringToBytes(text.substr(0, colon));
  }
  if (!IsHex(digest, parsed.digest.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 64 hexadecimal digits, found ", digest.size(), " characters"));
  }
  const std::string bytes = absl::HexStringToBytes(digest);
  std::copy(bytes.begin(), bytes.end(), parsed.digest.begin());
  return parsed;
}

TokenDigest DigestToken(absl::string_view token, std::string salt) {
  const Sha256Digest digest = Salted(salt, Sha256(token));
  return {.salt = std::move(salt), .digest = digest};
}

}  // namespace tandem
