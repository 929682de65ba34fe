// The router's configuration and tenants files: YAML, into messages, into a routing table.

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/yaml_proto.h"
#include "router/config/config.h"
#include "router/state/tenants_file.h"
#include "tandem/v1/config.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr char kConfigFile[] = "router.yaml";

const v1::RouterConfig& BaseConfig() {
  static const v1::RouterConfig config = [] {
    v1::RouterConfig base;
    const absl::Status status =
        ParseYaml("models: [{name: m, folder: /m, verifiers: ['127.0.0.1:7002']}]\nallow_anonymous: true\n",
                  kConfigFile, &base);
    Require(status.ok(), status.message());
    return base;
  }();
  return config;
}

// References point to existing entries.
void RequireResolved(const router::RoutingTable& table) {
  for (const router::Tenant& tenant : table.tenants) {
    Require(!tenant.models.empty(), "a model for every tenant");
    for (const size_t model : tenant.models) Require(model < table.models.size(), "a model that there is");
    for (const size_t drafter : tenant.allowed_drafters)
      Require(drafter < table.drafters.size(), "a drafter that there is");
    Require(!tenant.drafter.has_value() || *tenant.drafter < table.drafters.size(),
            "a drafter that there is");
    Require(tenant.weight >= 1 && tenant.weight <= router::kMaxWeight, "a weight within the bounds");
    Require(router::IsGoodName(tenant.name), "a name that can be a label");
  }
  for (const router::TargetModel& model : table.models)
    Require(router::IsGoodName(model.name), "a model's name");
}

bool RunRouterConfig(absl::string_view input) {
  const auto with_tenants = router::AddTenants(BaseConfig(), input, kConfigFile);
  if (!with_tenants.ok()) Refused(with_tenants.status(), kConfigFile);
  v1::RouterConfig config;
  const absl::Status status = ParseYaml(input, kConfigFile, &config);
  if (!status.ok()) return Refused(status, kConfigFile);
  const absl::StatusOr<router::RoutingTable> table = router::ResolveConfig(config);
  if (!table.ok()) {
    // Every error, one a line: their number is bounded by the file's size.
    Require(absl::IsInvalidArgument(table.status()), "a configuration refused as that");
    for (const v1::TenantConfig& tenant : config.tenants()) {
      if (tenant.token().size() < 12) continue;  // Others may be part of a word.
      Require(!absl::StrContains(table.status().message(), tenant.token()), "tokens left out of messages");
    }
    return with_tenants.ok();
  }
  RequireResolved(*table);
  return true;
}

std::vector<std::string> RouterConfigSeeds() {
  std::vector<std::string> seeds;
  for (const char* const file : {"deploy/docker/router.yaml", "k8s/overlays/cpu-demo/router-config.yaml",
                                 "k8s/base/router-tenants.yaml", "k8s/base/router-config.yaml"}) {
    seeds.push_back(RepositoryFile(file));
    // Kubernetes' manifests hold the file as a text.
    const size_t at = seeds.back().find(": |\n");
    if (at == std::string::npos) continue;
    std::string text;
    for (const absl::string_view line : absl::StrSplit(seeds.back().substr(at + 4), '\n')) {
      absl::StrAppend(&text, line.substr(std::min<size_t>(line.size(), 4)), "\n");
    }
    seeds.push_back(std::move(text));
  }
  seeds.push_back(R"(models:
  - {name: m, folder: /models/m, verifiers: [v0:7002, "dns:///v:7002"], output_format: hermes+think}
  - &small {name: s, folder: /models/s, verifiers: ["[fd00::1]:7002"]}
drafters:
  - {name: d, endpoint: d0:7003, draft_model: x, trusted: true}
  - {name: e, endpoint: "unix:/run/e", draft_model: y, draining: false}
tenants:
  - name: acme
    token_sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    models: [m]
    drafter: d
    partner: e
    drafter_policy: canary
    canary: {drafter: e, percent: 12.5, min_share: 0.9, min_rounds: 100, promote: true}
    allowed_window_policies: [goodput, fixed]
    window_policy: goodput
    tokens_per_minute: 100000
    weight: 3
    admin: true
  - {name: other, token: "a secret of some length", max_queued_requests: 0, drafter_policy: OFF}
allow_anonymous: true
max_concurrent_requests: 0x10
registration: {verifiers: true, drafters: true, ttl_seconds: 15}
)");
  return seeds;
}

const Registration kRouterConfig(
    {.name = "router_config", .run = RunRouterConfig, .seeds = RouterConfigSeeds, .spoilt = 3000});

}  // namespace
}  // namespace tandem::fuzz
