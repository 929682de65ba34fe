#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/token_digest.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {

inline constexpr uint32_t kDefaultMaxQueuedRequests = 64;
inline constexpr uint32_t kMaxWeight = 1000;

// A target model and the verifiers that hold it.
struct TargetModel {
  std::string name;
  std::string folder;
  std::vector<std::string> verifiers;  // gRPC targets or names (dns_name.h), at least one, all different.
};

struct Drafter {
  std::string name;
  std::string endpoint;
  std::string draft_model;
  bool trusted = false;
  bool draining = false;  // Takes no new sessions.
};

// A drafter on trial; see v1::CanaryConfig.
struct Canary {
  size_t drafter = 0;
  double percent = 0.0;
  double min_share = 0.9;
  uint32_t min_rounds = 200;
};

// A tenant with every reference resolved; indices point into RoutingTable's models and drafters.
struct Tenant {
  std::string name;
  std::optional<TokenDigest> token;  // Absent for the anonymous tenant only.
  std::vector<size_t> models;        // What it may use, at least one; the first is its default.
  std::optional<size_t> drafter;     // Its default drafter.
  v1::DrafterPolicy policy = v1::DRAFTER_POLICY_UNSPECIFIED;
  std::optional<Canary> canary;          // With policy CANARY.
  std::vector<size_t> allowed_drafters;  // What its requests may name, its default included.
  std::string window_policy;             // Empty: the verifier's.
  uint32_t max_concurrent_requests = 0;  // 0: no limit of its own.
  uint32_t max_queued_requests = kDefaultMaxQueuedRequests;
  uint32_t tokens_per_minute = 0;  // 0: no limit.
  uint32_t weight = 1;             // At least 1.
  bool admin = false;
  // Separates tenants in the verifiers' prefix caches. A function of the tenant's name, so that router
  // replicas and restarts agree.
  uint64_t cache_salt = 0;
};

// The router's configuration after every check. Immutable.
struct RoutingTable {
  std::vector<TargetModel> models;
  std::vector<Drafter> drafters;
  std::vector<Tenant> tenants;
  std::optional<size_t> anonymous;  // Tenant that serves calls without a token.
  uint32_t max_concurrent_requests = 0;
};

inline constexpr absl::string_view kAnonymousTenant = "anonymous";
inline constexpr uint32_t kDefaultMaxConcurrentRequests = 1024;

// Checks a configuration and resolves its references. InvalidArgument lists every error, one a line, each
// with the path of its field, as in `tenants[1].drafter: "foo" is not a configured drafter`. Tokens are never
// repeated in messages.
absl::StatusOr<RoutingTable> ResolveConfig(const v1::RouterConfig& config);

}  // namespace tandem::router
