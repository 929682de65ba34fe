#include "router/tenants.h"

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
  size_t matches = 0;
  for (size_t i = 0; i < table_.tenants.size(); ++i) {
    const std::optional<TokenDigest>& expected = table_.tenants[i].token;
    if (!expected.has_value() || !expected->Matches(digest)) continue;
    tenant = i;
    ++matches;
  }
  // There is no telling who calls with a token that two tenants have.
  return matches == 1 ? tenant : std::nullopt;
}

}  // namespace tandem::router
