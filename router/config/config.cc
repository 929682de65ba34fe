#include "router/config/config.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/hash.h"
#include "common/rpc/dns_name.h"
#include "common/speculation/policies/window_policy.h"

namespace tandem::router {
namespace {

constexpr uint32_t kShortestTtlSeconds = 3;
constexpr uint32_t kLongestTtlSeconds = 3600;
// Of the router in all (ServerList).
constexpr uint32_t kMostRegistered = 512;

std::string Quoted(absl::string_view value) {
  constexpr size_t kShown = 64;
  std::string shown = absl::CHexEscape(value.substr(0, kShown));
  return absl::StrCat("\"", shown, value.size() > kShown ? "..." : "", "\"");
}

bool IsPrintableWithoutBlanks(absl::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) { return absl::ascii_isgraph(c); });
}

using NameIndex = std::map<std::string, size_t>;

// Walks the configuration once, collecting errors instead of stopping at the first.
class Resolver {
 public:
  Resolver(const v1::RouterConfig& config, absl::Span<const Drafter> registered)
      : config_(config), registered_(registered) {}

  absl::StatusOr<RoutingTable> Resolve() {
    ResolveRegistration();
    ResolveModels();
    ResolveDrafters();
    AddRegisteredDrafters();
    ResolveTenants();
    table_.max_concurrent_requests = config_.has_max_concurrent_requests() ? config_.max_concurrent_requests()
                                                                           : kDefaultMaxConcurrentRequests;
    if (table_.max_concurrent_requests == 0) Error("max_concurrent_requests", "0, expected at least 1");
    if (!errors_.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
    return std::move(table_);
  }

 private:
  template <typename... Parts>
  void Error(absl::string_view path, const Parts&... parts) {
    errors_.push_back(absl::StrCat(path, ": ", parts...));
  }

  // Checks a name and enters it in `names`; `what` names the kind in messages.
  void AddName(const std::string& path, const std::string& name, absl::string_view what, size_t index,
               NameIndex& names) {
    if (name.empty()) {
      Error(path, "missing; every ", what, " needs a name");
    } else if (!IsGoodName(name)) {
      Error(path, Quoted(name), ", expected at most ", kMaxNameBytes,
            " printable ASCII characters without blanks");
    } else if (!names.emplace(name, index).second) {
      Error(path, Quoted(name), " is used twice; the name of a ", what, " must be unique");
    }
  }

  void CheckEndpoint(const std::string& path, const std::string& endpoint) {
    if (endpoint.empty()) {
      Error(path, "empty, expected a gRPC target such as \"host:port\"");
    } else if (!IsPrintableWithoutBlanks(endpoint)) {
      Error(path, Quoted(endpoint), ", expected a gRPC target such as \"host:port\"");
    }
  }

  void ResolveRegistration() {
    const v1::RegistrationConfig& registration = config_.registration();
    table_.registration.verifiers = registration.verifiers();
    table_.registration.drafters = registration.drafters();
    if (registration.max_per_address() > 0)
      table_.registration.max_per_address = registration.max_per_address();
    if (registration.max_per_address() > kMostRegistered) {
      Error("registration.max_per_address", registration.max_per_address(), ", expected at most ",
            kMostRegistered);
    }
    const uint32_t seconds = registration.ttl_seconds();
    if (seconds == 0) return;
    table_.registration.ttl = absl::Seconds(seconds);
    if (seconds < kShortestTtlSeconds || seconds > kLongestTtlSeconds) {
      Error("registration.ttl_seconds", seconds, ", expected ", kShortestTtlSeconds, " to ",
            kLongestTtlSeconds);
    }
  }

  void ResolveModels() {
    if (config_.models().empty()) Error("models", "empty, expected at least one target model");
    for (int i = 0; i < config_.models_size(); ++i) {
      const v1::TargetModelConfig& model = config_.models(i);
      const std::string path = absl::StrCat("models[", i, "]");
      AddName(path + ".name", model.name(), "target model", i, model_names_);
      if (model.folder().empty()) {
        Error(path + ".folder", "missing, expected the model's folder, which holds its tokenizer");
      }
      if (model.verifiers().empty() && !config_.registration().verifiers()) {
        Error(path + ".verifiers", "empty, expected at least one verifier");
      }
      TargetModel resolved{.name = model.name(), .folder = model.folder()};
      for (int j = 0; j < model.verifiers_size(); ++j) {
        const std::string& verifier = model.verifiers(j);
        const std::string verifier_path = absl::StrCat(path, ".verifiers[", j, "]");
        CheckEndpoint(verifier_path, verifier);
        if (const auto name = ParseDnsName(verifier); !name.ok())
          Error(verifier_path, name.status().message());
        if (!verifier.empty() && std::find(resolved.verifiers.begin(), resolved.verifiers.end(), verifier) !=
                                     resolved.verifiers.end()) {
          Error(verifier_path, Quoted(verifier), " is listed twice");
        }
        resolved.verifiers.push_back(verifier);
      }
      table_.models.push_back(std::move(resolved));
    }
  }

  void ResolveDrafters() {
    for (int i = 0; i < config_.drafters_size(); ++i) {
      const v1::DrafterConfig& drafter = config_.drafters(i);
      const std::string path = absl::StrCat("drafters[", i, "]");
      AddName(path + ".name", drafter.name(), "drafter", i, drafter_names_);
      CheckEndpoint(path + ".endpoint", drafter.endpoint());
      if (drafter.draft_model().empty())
        Error(path + ".draft_model", "missing, expected a draft model's name");
      table_.drafters.push_back({.name = drafter.name(),
                                 .endpoint = drafter.endpoint(),
                                 .draft_model = drafter.draft_model(),
                                 .trusted = drafter.trusted(),
                                 .draining = drafter.draining()});
    }
  }

  // After the configured ones, which take precedence.
  void AddRegisteredDrafters() {
    if (!table_.registration.drafters) return;
    for (const Drafter& drafter : registered_) {
      if (drafter_names_.emplace(drafter.name, table_.drafters.size()).second) {
        table_.drafters.push_back(drafter);
      }
    }
    for (const v1::TenantConfig& tenant : config_.tenants()) {
      AddAbsentDrafter(tenant.drafter());
      AddAbsentDrafter(tenant.partner());
      AddAbsentDrafter(tenant.canary().drafter());
      for (const std::string& name : tenant.allowed_drafters()) AddAbsentDrafter(name);
    }
  }

  // A drafter that a tenant names and that does not exist: it may register later.
  void AddAbsentDrafter(const std::string& name) {
    if (!IsGoodName(name) || !drafter_names_.emplace(name, table_.drafters.size()).second) return;
    table_.drafters.push_back({.name = name, .draft_model = name, .draining = true, .absent = true});
  }

  void ResolveTenants() {
    if (config_.tenants().empty() && !config_.allow_anonymous()) {
      Error("tenants", "empty, expected at least one tenant, or allow_anonymous");
    }
    for (int i = 0; i < config_.tenants_size(); ++i) ResolveTenant(i);
    if (!config_.allow_anonymous()) return;
    Tenant anonymous{.name = std::string(kAnonymousTenant.data(), kAnonymousTenant.size())};
    anonymous.cache_salt = HashBytes(anonymous.name);
    ResolveTenantModels("", {}, anonymous);
    ResolveTenantDrafters("", {}, anonymous);
    table_.anonymous = table_.tenants.size();
    table_.tenants.push_back(std::move(anonymous));
  }

  void ResolveTenant(int i) {
    const v1::TenantConfig& tenant = config_.tenants(i);
    const std::string path = absl::StrCat("tenants[", i, "]");
    AddName(path + ".name", tenant.name(), "tenant", i, tenant_names_);
    if (config_.allow_anonymous() && tenant.name() == kAnonymousTenant) {
      Error(path + ".name", "\"anonymous\" is reserved by allow_anonymous");
    }
    Tenant resolved{.name = tenant.name(),
                    .window_policy = tenant.window_policy(),
                    .max_concurrent_requests = tenant.max_concurrent_requests(),
                    .tokens_per_minute = tenant.tokens_per_minute(),
                    .admin = tenant.admin(),
                    .text_drafting = tenant.text_drafting(),
                    .record_traffic = tenant.record_traffic(),
                    .cache_salt = HashBytes(tenant.name())};
    if (!v1::UnknownFields_IsValid(tenant.unknown_fields())) {
      Error(path + ".unknown_fields", static_cast<int>(tenant.unknown_fields()),
            ", expected ignore or refuse");
    }
    resolved.refuses_unknown_fields = tenant.unknown_fields() == v1::UNKNOWN_FIELDS_REFUSE;
    if (tenant.has_max_queued_requests()) resolved.max_queued_requests = tenant.max_queued_requests();
    if (tenant.weight() > kMaxWeight) {
      Error(path + ".weight", tenant.weight(), ", expected at most ", kMaxWeight);
    }
    if (tenant.weight() > 0) resolved.weight = tenant.weight();
    resolved.token = ResolveToken(path, tenant);
    if (resolved.token.has_value()) {
      // Two salted digests of one token look different; Tenants refuses it then.
      auto [first, inserted] = tokens_.emplace(resolved.token->Text(), path);
      if (!inserted) Error(path, "has the same token as ", first->second, "; tokens must be unique");
    }
    ResolveTenantModels(path, {tenant.models().begin(), tenant.models().end()}, resolved);
    if (!tenant.drafter().empty()) {
      resolved.drafter = Find(path + ".drafter", tenant.drafter(), "drafter", drafter_names_);
    }
    if (!tenant.partner().empty()) {
      resolved.partner = Find(path + ".partner", tenant.partner(), "drafter", drafter_names_);
      if (tenant.partner() == tenant.drafter()) {
        Error(path + ".partner", Quoted(tenant.partner()), " is the tenant's drafter already");
      }
    }
    ResolvePolicy(path, tenant, resolved);
    CheckWindowPolicy(path + ".window_policy", tenant.window_policy());
    ResolveWindowPolicies(path, tenant, resolved);
    ResolveAdapters(path, tenant, resolved);
    ResolveTenantDrafters(path, {tenant.allowed_drafters().begin(), tenant.allowed_drafters().end()},
                          resolved);
    table_.tenants.push_back(std::move(resolved));
  }

  void ResolvePolicy(const std::string& path, const v1::TenantConfig& tenant, Tenant& resolved) {
    const v1::DrafterPolicy policy = tenant.drafter_policy();
    if (!v1::DrafterPolicy_IsValid(policy)) {
      Error(path + ".drafter_policy", static_cast<int>(policy), ", expected auto, pinned, canary or off");
      return;
    }
    resolved.policy = policy;
    const bool canary = policy == v1::DRAFTER_POLICY_CANARY;
    if ((canary || policy == v1::DRAFTER_POLICY_PINNED) && tenant.drafter().empty()) {
      Error(path + ".drafter", "missing; drafter_policy ", canary ? "canary" : "pinned", " needs one");
    }
    if (canary != tenant.has_canary()) {
      Error(path + ".canary",
            canary ? "missing; drafter_policy canary needs it" : "given, but drafter_policy is not canary");
    }
    if (canary && tenant.has_canary()) resolved.canary = ResolveCanary(path + ".canary", tenant);
  }

  Canary ResolveCanary(const std::string& path, const v1::TenantConfig& tenant) {
    const v1::CanaryConfig& config = tenant.canary();
    Canary canary;
    if (config.drafter() == tenant.drafter() && !config.drafter().empty()) {
      Error(path + ".drafter", Quoted(config.drafter()), " is the tenant's drafter already");
    }
    canary.drafter = Find(path + ".drafter", config.drafter(), "drafter", drafter_names_).value_or(0);
    // Written so that NaN fails.
    if (!(config.percent() >= 0.0 && config.percent() <= 100.0)) {
      Error(path + ".percent", config.percent(), ", expected 0 to 100");
    }
    if (!(config.min_share() >= 0.0 && config.min_share() <= 1.0)) {
      Error(path + ".min_share", config.min_share(), ", expected 0 to 1");
    }
    canary.percent = config.percent();
    if (config.min_share() > 0.0) canary.min_share = config.min_share();
    if (config.min_rounds() > 0) canary.min_rounds = config.min_rounds();
    canary.promote = config.promote();
    if (!(config.max_error() >= 0.0 && config.max_error() <= 0.5)) {
      Error(path + ".max_error", config.max_error(), ", expected 0 to 0.5");
    }
    if (config.max_error() > 0.0) canary.max_error = config.max_error();
    canary.max_requests = config.max_requests();
    return canary;
  }

  std::optional<TokenDigest> ResolveToken(const std::string& path, const v1::TenantConfig& tenant) {
    if (tenant.token().empty() == tenant.token_sha256().empty()) {
      Error(path, "expected exactly one of token and token_sha256, found ",
            tenant.token().empty() ? "none" : "both");
      return std::nullopt;
    }
    if (!tenant.token().empty()) {
      if (!IsPrintableWithoutBlanks(tenant.token())) {
        Error(path + ".token", "expected printable ASCII characters without blanks");
        return std::nullopt;
      }
      return DigestToken(tenant.token(), /*salt=*/"");
    }
    const absl::StatusOr<TokenDigest> digest = ParseTokenDigest(tenant.token_sha256());
    if (digest.ok()) return *digest;
    Error(path + ".token_sha256", digest.status().message());
    return std::nullopt;
  }

  void ResolveTenantModels(const std::string& path, const std::vector<std::string>& names, Tenant& tenant) {
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string model_path = absl::StrCat(path, ".models[", i, "]");
      if (std::optional<size_t> model = Find(model_path, names[i], "model", model_names_)) {
        tenant.models.push_back(*model);
      }
    }
    if (!names.empty()) return;
    for (size_t i = 0; i < table_.models.size(); ++i) tenant.models.push_back(i);
  }

  void ResolveTenantDrafters(const std::string& path, const std::vector<std::string>& names, Tenant& tenant) {
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string drafter_path = absl::StrCat(path, ".allowed_drafters[", i, "]");
      if (std::optional<size_t> drafter = Find(drafter_path, names[i], "drafter", drafter_names_)) {
        tenant.allowed_drafters.push_back(*drafter);
      }
    }
    if (names.empty()) {
      for (size_t i = 0; i < table_.drafters.size(); ++i) tenant.allowed_drafters.push_back(i);
    } else {
      // A request that names what it would get anyway is harmless.
      if (tenant.drafter.has_value()) tenant.allowed_drafters.push_back(*tenant.drafter);
      if (tenant.canary.has_value()) tenant.allowed_drafters.push_back(tenant.canary->drafter);
      if (tenant.partner.has_value()) tenant.allowed_drafters.push_back(*tenant.partner);
    }
    std::sort(tenant.allowed_drafters.begin(), tenant.allowed_drafters.end());
    tenant.allowed_drafters.erase(std::unique(tenant.allowed_drafters.begin(), tenant.allowed_drafters.end()),
                                  tenant.allowed_drafters.end());
  }

  void ResolveWindowPolicies(const std::string& path, const v1::TenantConfig& tenant, Tenant& resolved) {
    for (int i = 0; i < tenant.allowed_window_policies_size(); ++i) {
      const std::string& name = tenant.allowed_window_policies(i);
      const std::string policy_path = absl::StrCat(path, ".allowed_window_policies[", i, "]");
      if (name.empty()) {
        Error(policy_path, "empty, expected a window policy");
        continue;
      }
      CheckWindowPolicy(policy_path, name);
      resolved.allowed_window_policies.push_back(name);
    }
    // A request that names what it would get anyway is harmless.
    if (!resolved.allowed_window_policies.empty() && !tenant.window_policy().empty()) {
      resolved.allowed_window_policies.push_back(tenant.window_policy());
    }
  }

  // Which adapters there are, verifiers say.
  void ResolveAdapters(const std::string& path, const v1::TenantConfig& tenant, Tenant& resolved) {
    const auto check = [&](const std::string& field, const std::string& name) {
      if (IsGoodName(name)) return;
      Error(absl::StrCat(path, ".", field), Quoted(name), ", expected at most ", kMaxNameBytes,
            " printable ASCII characters without blanks");
    };
    resolved.adapter = tenant.adapter();
    if (!tenant.adapter().empty()) check("adapter", tenant.adapter());
    for (int i = 0; i < tenant.allowed_adapters_size(); ++i) {
      check(absl::StrCat("allowed_adapters[", i, "]"), tenant.allowed_adapters(i));
      resolved.allowed_adapters.push_back(tenant.allowed_adapters(i));
    }
    // A request that names what it would get anyway is harmless.
    if (!resolved.allowed_adapters.empty() && !tenant.adapter().empty()) {
      resolved.allowed_adapters.push_back(tenant.adapter());
    }
  }

  void CheckWindowPolicy(const std::string& path, const std::string& name) {
    if (name.empty()) return;
    const std::vector<std::string> known = WindowPolicyNames();
    if (std::find(known.begin(), known.end(), name) != known.end()) return;
    Error(path, Quoted(name), ", expected one of ", absl::StrJoin(known, ", "));
  }

  std::optional<size_t> Find(const std::string& path, const std::string& name, absl::string_view what,
                             const NameIndex& names) {
    const auto found = names.find(name);
    if (found != names.end()) return found->second;
    Error(path, Quoted(name), " is not a configured ", what);
    return std::nullopt;
  }

  const v1::RouterConfig& config_;
  const absl::Span<const Drafter> registered_;
  RoutingTable table_;
  NameIndex model_names_;
  NameIndex drafter_names_;
  NameIndex tenant_names_;
  std::map<std::string, std::string> tokens_;  // Token's digest -> path of the tenant that has it.
  std::vector<std::string> errors_;
};

}  // namespace

bool IsGoodName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && IsPrintableWithoutBlanks(name);
}

absl::StatusOr<RoutingTable> ResolveConfig(const v1::RouterConfig& config,
                                           absl::Span<const Drafter> registered) {
  return Resolver(config, registered).Resolve();
}

}  // namespace tandem::router
