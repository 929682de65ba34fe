#include "router/state/tenants_file.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/yaml_proto.h"
#include "router/config/config.h"

namespace tandem::router {
namespace {

// What ParseYaml takes.
constexpr size_t kMaxTenantsFileBytes = size_t{1} << 20;

}  // namespace

absl::StatusOr<Secret> ReadTenantsFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxTenantsFileBytes));
  Secret content(text);
  Cleanse(text);
  return content;
}

absl::StatusOr<v1::RouterConfig> AddTenants(const v1::RouterConfig& config, absl::string_view text,
                                            const std::string& path) {
  // Which would be valid, and take all tenants of the file away.
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": empty, expected drafters or tenants"));
  }
  v1::RouterConfig added;
  TANDEM_RETURN_IF_ERROR(ParseYaml(text, path, &added));
  v1::RouterConfig others = added;
  others.clear_drafters();
  others.clear_tenants();
  if (!others.SerializeAsString().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected drafters and tenants; everything else belongs in the configuration"));
  }
  v1::RouterConfig both = config;
  both.MergeFrom(added);
  if (const absl::Status status = ResolveConfig(both).status(); !status.ok()) {
    // Positions in the two lists are in neither of the files.
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", WithNames(both, status.message())));
  }
  return both;
}

absl::StatusOr<v1::RouterConfig> AddTenantsFile(const v1::RouterConfig& config, const std::string& path) {
  const absl::StatusOr<Secret> text = ReadTenantsFile(path);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  return AddTenants(config, text->Reveal(), path);
}

TenantsFileFollower::TenantsFileFollower(Options options, Secret applied, RoutingState* state,
                                         MetricsRegistry* registry)
    : options_(std::move(options)),
      state_(*state),
      reloads_(registry->AddCounter({"tandem_router_tenants_file_reloads_total",
                                     "Reloads of the tenants file, by outcome: applied or refused.",
                                     {"outcome"}})),
      refused_(registry
                   ->AddGauge({"tandem_router_tenants_file_refused",
                               "1 while the tenants file is refused and an older version is in force.",
                               {}})
                   .With()),
      applied_(std::move(applied)) {
  // There from the start, so that a rate has something to begin from.
  for (const absl::string_view outcome : {"applied", "refused"}) reloads_.With({outcome});
  thread_ = std::thread([this] { Run(); });
}

TenantsFileFollower::~TenantsFileFollower() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void TenantsFileFollower::Run() {
  while (true) {
    Look();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.interval)) return;
  }
}

void TenantsFileFollower::Look() {
  absl::StatusOr<Secret> content = ReadTenantsFile(options_.path);
  // Seen twice, so that one that is just being written is not taken for a whole one.
  const Secret found = content.ok() ? *content : Secret(content.status().ToString());
  if (!(std::exchange(seen_, found) == found)) return;
  // Also when a bad content was taken back.
  if (content.ok() && *content == applied_) {
    logged_.clear();
    refused_.Set(0);
    return;
  }
  const absl::Status status = content.ok() ? Apply(*content) : content.status();
  if (status.ok()) {
    applied_ = *std::move(content);
    logged_.clear();
    refused_.Set(0);
    reloads_.With({"applied"}).Increment();
    LogInfo("tenants file applied", {{"path", options_.path}});
    return;
  }
  refused_.Set(1);
  std::string error(status.message());
  if (error == logged_) return;
  reloads_.With({"refused"}).Increment();
  LogError("the tenants file cannot be used; tenants and drafters keep their last good configuration",
           {{"path", options_.path}, {"error", error}});
  logged_ = std::move(error);
}

absl::Status TenantsFileFollower::Apply(const Secret& content) {
  TANDEM_ASSIGN_OR_RETURN(const v1::RouterConfig file,
                          AddTenants(options_.config, content.Reveal(), options_.path));
  return state_.ApplyFile(file);
}

}  // namespace tandem::router
