#include "router/state/etcd/etcd_address.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem::router {
namespace {

// Beyond any cluster.
constexpr size_t kMaxEndpoints = 16;
constexpr size_t kMaxPrefixBytes = 256;
// Of an address, in an error.
constexpr size_t kMaxQuotedBytes = 200;
// Of how keys and values are laid out below the prefix.
constexpr absl::string_view kLayout = "v1/";

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMaxQuotedBytes)),
                      text.size() > kMaxQuotedBytes ? "...\"" : "\"");
}

template <class... Parts>
absl::Status Wrong(absl::string_view uri, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("state: ", Quoted(uri), ": ", parts..., "; expected etcd://host:port[,host:port]/prefix"));
}

bool IsHost(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return false;
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':';
  });
}

bool IsEndpoint(absl::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (colon == absl::string_view::npos) return false;
  const absl::string_view host = endpoint.substr(0, colon);
  uint32_t port = 0;
  const bool has_port = absl::SimpleAtoi(endpoint.substr(colon + 1), &port) && port > 0 && port < 65536;
  // Without brackets it would not be clear where an IPv6 address ends.
  return has_port && IsHost(host) && (host.front() == '[' || !absl::StrContains(host, ':'));
}

bool IsPath(absl::string_view path) {
  if (path.size() > kMaxPrefixBytes || absl::StrContains(path, "//")) return false;
  return std::all_of(path.begin(), path.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' || c == '/';
  });
}

}  // namespace

absl::StatusOr<EtcdAddress> ParseEtcdAddress(absl::string_view uri) {
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kEtcdScheme)) return Wrong(uri, "not an etcd");
  if (absl::StrContains(rest, '@')) {
    // Not repeated: it may be a password.
    return absl::InvalidArgumentError(
        "state: etcd's address must not contain a user and password; expected --state-username and "
        "--state-password-file");
  }
  const size_t slash = rest.find('/');
  if (slash == absl::string_view::npos) return Wrong(uri, "there is no prefix");
  EtcdAddress address;
  for (const absl::string_view endpoint : absl::StrSplit(rest.substr(0, slash), ',')) {
    if (!IsEndpoint(endpoint)) return Wrong(uri, Quoted(endpoint), " is not host:port");
    std::string text(endpoint.data(), endpoint.size());
    if (std::find(address.endpoints.begin(), address.endpoints.end(), text) != address.endpoints.end()) {
      return Wrong(uri, Quoted(endpoint), " occurs twice");
    }
    address.endpoints.push_back(std::move(text));
  }
  if (address.endpoints.size() > kMaxEndpoints) return Wrong(uri, "more than ", kMaxEndpoints, " endpoints");
  absl::string_view path = rest.substr(slash);
  absl::ConsumeSuffix(&path, "/");
  if (path.size() < 2) return Wrong(uri, "there is no prefix");
  if (!IsPath(path)) return Wrong(uri, "the prefix has other characters than letters, digits and \"._-/\"");
  address.prefix = absl::StrCat(path, "/", kLayout);
  return address;
}

}  // namespace tandem::router
