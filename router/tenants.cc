#include "router/tenants.h"

#include <openssl/crypto.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace tandem::router {

std::optional<size_t> Tenants::Authenticate(std::optional<absl::string_view> authorization) const {
  if (!authorization.has_value()) return table_.anonymous;
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(*authorization, kScheme)) return std::nullopt;
  const absl::string_view token = absl::StripAsciiWhitespace(authorization->substr(kScheme.size()));
  if (token.empty()) return std::nullopt;

  const Sha256Digest digest = Sha256(token);
  std::optional<size_t> tenant;
  for (size_t i = 0; i < table_.tenants.size(); ++i) {
    const std::optional<Sha256Digest>& expected = table_.tenants[i].token_digest;
    if (!expected.has_value()) continue;
    if (CRYPTO_memcmp(expected->data(), digest.data(), digest.size()) == 0) tenant = i;
  }
  return tenant;
}

}  // namespace tandem::router
