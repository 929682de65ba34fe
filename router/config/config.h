#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/config/token_digest.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {

inline constexpr uint32_t kDefaultMaxQueuedRequests = 64;
inline constexpr uint32_t kMaxWeight = 1000;
inline constexpr absl::Duration kDefaultRegistrationTtl = absl::Seconds(15);

// A target model and the verifiers that hold it.
struct TargetModel {
  std::string name;
  std::string folder;
  // gRPC targets or names (common/rpc/dns_name.h), all different. At least one, unless verifiers may
  // register.
  std::vector<std::string> verifiers;
};

struct Drafter {
  std::string name;
  std::string endpoint;
  std::string draft_model;
  bool trusted = false;
  bool draining = false;  // Takes no new sessions.
  // Tenants name it, but it has not registered. It then has no endpoint, and counts as draining.
  bool absent = false;
};

// Which servers may register, and how long they are used after their last sign of life.
struct Registration {
  bool verifiers = false;
  bool drafters = false;
  absl::Duration ttl = kDefaultRegistrationTtl;
  uint32_t max_per_address = 64;  // v1::RegistrationConfig.
};

// A drafter on trial; see v1::CanaryConfig.
struct Canary {
  size_t drafter = 0;
  double percent = 0.0;
  double min_share = 0.9;
  uint32_t min_rounds = 200;
  bool promote = false;
  double max_error = 0.01;    // Probability of a wrong verdict, however often it is evaluated.
  uint32_t max_requests = 0;  // 0: the trial runs until there is a verdict.
};

// A tenant with every reference resolved; indices point into RoutingTable's models and drafters.
struct Tenant {
  std::string name;
  std::optional<TokenDigest> token;  // Absent for the anonymous tenant only.
  std::vector<size_t> models;        // What it may use, at least one; the first is its default.
  std::optional<size_t> drafter;     // Its default drafter,
  std::optional<size_t> partner;     // and the one that drafts along with it.
  v1::DrafterPolicy policy = v1::DRAFTER_POLICY_UNSPECIFIED;
  std::optional<Canary> canary;          // With policy CANARY.
  std::vector<size_t> allowed_drafters;  // What its requests may name, its default included.
  std::string window_policy;             // Empty: the verifier's.
  // Window policies that its requests may name, including its own; empty: all.
  std::vector<std::string> allowed_window_policies;
  std::string adapter;                        // Of requests that name none, with its default model; or none.
  std::vector<std::string> allowed_adapters;  // What its requests may name, its own included; empty: all.
  uint32_t max_concurrent_requests = 0;       // 0: no limit of its own.
  uint32_t max_queued_requests = kDefaultMaxQueuedRequests;
  uint32_t tokens_per_minute = 0;  // 0: no limit.
  uint32_t weight = 1;             // At least 1.
  bool admin = false;
  bool text_drafting = false;   // Whether drafters of an entirely different vocabulary may draft for it.
  bool record_traffic = false;  // Whether its prompts and outputs go to the router's spool.
  bool refuses_unknown_fields = false;  // Of its requests over HTTP; they are ignored otherwise.
  // Separates tenants in the verifiers' prefix caches. Derived from the tenant's name, so that replicas and
  // restarts of the router agree.
  uint64_t cache_salt = 0;
};

// The router's configuration after every check. Immutable.
struct RoutingTable {
  std::vector<TargetModel> models;
  std::vector<Drafter> drafters;
  std::vector<Tenant> tenants;
  std::optional<size_t> anonymous;  // Tenant that serves calls without a token.
  uint32_t max_concurrent_requests = 0;
  Registration registration;
};

inline constexpr absl::string_view kAnonymousTenant = "anonymous";
inline constexpr uint32_t kDefaultMaxConcurrentRequests = 1024;

// Checks a configuration and resolves its references. InvalidArgument lists every error, one per line, each
// with the path of its field, as in `tenants[1].drafter: "foo" is not a configured drafter`. Messages never
// contain tokens.
//
// `registered`: the registered drafters. If a configured drafter has the same name, it takes precedence. If
// drafters may register, a drafter that a tenant names and that is unknown is in the table as absent.
absl::StatusOr<RoutingTable> ResolveConfig(const v1::RouterConfig& config,
                                           absl::Span<const Drafter> registered = {});

// Whether this can be the name of a model, drafter, tenant or server: 1 to kMaxNameBytes printable ASCII
// characters without blanks. Names become metric labels, metadata and log fields.
inline constexpr size_t kMaxNameBytes = 128;
bool IsGoodName(absl::string_view name);

}  // namespace tandem::router
