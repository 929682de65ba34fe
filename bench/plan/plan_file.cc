#include "bench/plan/plan_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "bench/plan/plan_engine.h"
#include "bench/plan/yaml_section.h"
#include "common/base/status_macros.h"
#include "common/config/yaml_document.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/strict_json.h"
#include "router/config/config.h"

namespace tandem::plan {
namespace {

constexpr double kLongestRun = 7.0 * 86400.0;
constexpr double kMostPerSecond = 1e6;
constexpr double kLongestMs = 3.6e6;
constexpr double kHighestPrice = 1e9;
constexpr uint32_t kMostMachines = 4096;
constexpr uint64_t kMostKvTokens = uint64_t{1} << 32;
constexpr uint32_t kMostTokens = 1 << 19;  // Of a prompt or an output: both fit a context.

absl::Status OneOf(const YamlSection& section, const std::vector<std::string>& keys) {
  std::vector<std::string> present;
  for (const std::string& key : keys) {
    if (section.Has(key)) present.push_back(key);
  }
  if (present.size() == 1) return absl::OkStatus();
  return section.Unexpected(present.empty() ? keys.front() : present[1],
                            absl::StrCat("exactly one of ", absl::StrJoin(keys, ", ")));
}

absl::Status ReadLengths(const YAML::Node& node, absl::string_view path, const std::string& name,
                         Lengths* lengths) {
  if (node.IsScalar()) {
    uint32_t fixed = 0;
    YAML::Node wrapped;
    wrapped["mean"] = node;
    TANDEM_ASSIGN_OR_RETURN(const YamlSection section, YamlSection::Open(wrapped, path, name, {"mean"}));
    TANDEM_RETURN_IF_ERROR(section.Read("mean", 1u, kMostTokens, &fixed));
    *lengths = {.mean = static_cast<double>(fixed), .deviation = 0.0, .least = fixed, .most = fixed};
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section,
                          YamlSection::Open(node, path, name, {"mean", "deviation", "least", "most"}));
  if (!section.Has("mean")) return section.Unexpected("mean", "the mean number of tokens");
  TANDEM_RETURN_IF_ERROR(section.Read("mean", 1.0, kMostTokens, &lengths->mean));
  TANDEM_RETURN_IF_ERROR(section.Read("deviation", 0.0, kMostTokens, &lengths->deviation));
  TANDEM_RETURN_IF_ERROR(section.Read("least", 1u, kMostTokens, &lengths->least));
  return section.Read("most", lengths->least, kMostTokens, &lengths->most);
}

absl::Status ReadTenant(const YAML::Node& node, absl::string_view path, const std::string& name,
                        Traffic* traffic) {
  TANDEM_ASSIGN_OR_RETURN(
      const YamlSection section,
      YamlSection::Open(node, path, name,
                        {"name", "share", "kinds", "prompt_tokens", "output_tokens", "shared_prompt_tokens",
                         "weight", "max_concurrent_requests", "max_queued_requests", "tokens_per_minute"}));
  TenantTraffic tenant;
  if (!section.Has("name")) return section.Unexpected("name", "the tenant's name");
  TANDEM_RETURN_IF_ERROR(section.Read("name", &tenant.name));
  for (const TenantTraffic& other : traffic->tenants) {
    if (other.name == tenant.name) return section.Unexpected("name", "a unique name");
  }
  TANDEM_RETURN_IF_ERROR(section.Read("share", 1e-9, 1e9, &tenant.share));
  const auto read_kind = [&](const std::string& kind, const YAML::Node& value) -> absl::Status {
    YAML::Node wrapped;
    wrapped[kind] = value;
    TANDEM_ASSIGN_OR_RETURN(const YamlSection one,
                            YamlSection::Open(wrapped, path, section.NameOf("kinds"), {kind}));
    KindShare share{.kind = kind};
    TANDEM_RETURN_IF_ERROR(one.Read(kind, 1e-9, 1e9, &share.share));
    tenant.kinds.push_back(share);
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(section.VisitMap("kinds", read_kind));
  if (tenant.kinds.empty()) tenant.kinds = {{.kind = "text"}};
  for (const char* const key : {"prompt_tokens", "output_tokens"}) {
    Lengths* const lengths = key[0] == 'p' ? &tenant.prompt : &tenant.output;
    TANDEM_RETURN_IF_ERROR(section.Visit(key, [&](const YAML::Node& value, const std::string& at) {
      return ReadLengths(value, path, at, lengths);
    }));
  }
  TANDEM_RETURN_IF_ERROR(section.Read("shared_prompt_tokens", 0u, kMostTokens, &tenant.shared_prompt));
  TANDEM_RETURN_IF_ERROR(section.Read("weight", 1u, router::kMaxWeight, &tenant.weight));
  TANDEM_RETURN_IF_ERROR(
      section.Read("max_concurrent_requests", 0u, 1u << 24, &tenant.max_concurrent_requests));
  TANDEM_RETURN_IF_ERROR(section.Read("max_queued_requests", 0u, 1u << 24, &tenant.max_queued_requests));
  TANDEM_RETURN_IF_ERROR(section.Read("tokens_per_minute", 0u, UINT32_MAX, &tenant.tokens_per_minute));
  traffic->tenants.push_back(std::move(tenant));
  return absl::OkStatus();
}

absl::Status AddKind(const std::string& kind, Traffic* traffic) {
  if (std::find(traffic->kinds.begin(), traffic->kinds.end(), kind) != traffic->kinds.end())
    return absl::OkStatus();
  if (traffic->kinds.size() >= PlanEngine::kMostKinds) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", PlanEngine::kMostKinds, " kinds of text, expected no more"));
  }
  traffic->kinds.push_back(kind);
  return absl::OkStatus();
}

absl::Status ReadRates(const YamlSection& section, Traffic* traffic) {
  if (section.Has("rate")) {
    RatePiece piece;
    TANDEM_RETURN_IF_ERROR(section.Read("rate", 1e-6, kMostPerSecond, &piece.rate));
    traffic->rates = {piece};
  }
  return section.VisitList("day", [&](const YAML::Node& node, const std::string& name) {
    TANDEM_ASSIGN_OR_RETURN(const YamlSection one,
                            YamlSection::Open(node, section.path(), name, {"at", "rate"}));
    RatePiece piece;
    TANDEM_RETURN_IF_ERROR(one.Read("at", 0.0, kLongestRun, &piece.at_seconds));
    TANDEM_RETURN_IF_ERROR(one.Read("rate", 0.0, kMostPerSecond, &piece.rate));
    if (!traffic->rates.empty() && piece.at_seconds <= traffic->rates.back().at_seconds) {
      return one.Unexpected("at", "a later time than that of the entry before");
    }
    traffic->rates.push_back(piece);
    return absl::OkStatus();
  });
}

absl::Status ReadTraffic(const YAML::Node& node, absl::string_view path, const std::string& name,
                         const ReadInput& read, Traffic* traffic) {
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section,
                          YamlSection::Open(node, path, name,
                                            {"seconds", "warm_up_seconds", "seed", "rate", "day",
                                             "concurrency", "trace", "tenants"}));
  TANDEM_RETURN_IF_ERROR(section.Read("seconds", 1e-3, kLongestRun, &traffic->seconds));
  traffic->warm_up_seconds = std::min(traffic->warm_up_seconds, traffic->seconds / 10.0);
  TANDEM_RETURN_IF_ERROR(
      section.Read("warm_up_seconds", 0.0, 0.999 * traffic->seconds, &traffic->warm_up_seconds));
  TANDEM_RETURN_IF_ERROR(section.Read("seed", uint64_t{0}, UINT64_MAX, &traffic->seed));
  // A closed loop can take its requests from a recorded day.
  if (!(section.Has("trace") && section.Has("concurrency") && !section.Has("rate") && !section.Has("day"))) {
    TANDEM_RETURN_IF_ERROR(OneOf(section, {"rate", "day", "concurrency", "trace"}));
  }
  TANDEM_RETURN_IF_ERROR(ReadRates(section, traffic));
  TANDEM_RETURN_IF_ERROR(section.Read("concurrency", 1u, 1u << 20, &traffic->concurrency));
  TANDEM_RETURN_IF_ERROR(section.VisitList("tenants", [&](const YAML::Node& tenant, const std::string& at) {
    return ReadTenant(tenant, path, at, traffic);
  }));
  if (traffic->tenants.empty()) return section.Unexpected("tenants", "a list of tenants");
  std::string trace;
  TANDEM_RETURN_IF_ERROR(section.Read("trace", &trace));
  if (!trace.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string lines, read(trace));
    return ParseRecordedDay(lines, trace, traffic);
  }
  for (const TenantTraffic& tenant : traffic->tenants) {
    for (const KindShare& share : tenant.kinds) {
      if (absl::Status added = AddKind(share.kind, traffic); !added.ok()) {
        return YamlError(path, node, absl::StrCat(name, ": ", added.message()));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadGrid(const YamlSection& section, std::vector<RoundTimeModel::Point>* grid) {
  const char* const expected =
      "[rows, context, milliseconds], every number of rows with every context, each once";
  const auto read_point = [&](const YAML::Node& node, const std::string& name) -> absl::Status {
    YAML::Node wrapped;
    wrapped["point"] = node;
    TANDEM_ASSIGN_OR_RETURN(const YamlSection one,
                            YamlSection::Open(wrapped, section.path(), name, {"point"}));
    std::vector<double> point;
    TANDEM_RETURN_IF_ERROR(one.Read("point", 0.0, kLongestMs, &point));
    if (point.size() != 3 || point[0] < 1.0 || point[0] > 1e6 || point[1] > 1e6) {
      return UnexpectedYaml(section.path(), node, name, expected);
    }
    grid->push_back({.rows = static_cast<uint32_t>(point[0]),
                     .seconds = point[2] / 1e3,
                     .context = static_cast<uint32_t>(point[1])});
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(section.VisitList("grid", read_point));
  // The model needs a complete grid.
  std::vector<uint32_t> rows;
  std::vector<uint32_t> contexts;
  for (const RoundTimeModel::Point& point : *grid) {
    if (std::find(rows.begin(), rows.end(), point.rows) == rows.end()) rows.push_back(point.rows);
    if (std::find(contexts.begin(), contexts.end(), point.context) == contexts.end())
      contexts.push_back(point.context);
  }
  bool complete = grid->size() == rows.size() * contexts.size();
  for (size_t i = 0; i < grid->size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      complete = complete && ((*grid)[i].rows != (*grid)[j].rows || (*grid)[i].context != (*grid)[j].context);
    }
  }
  return complete ? absl::OkStatus() : section.Unexpected("grid", absl::StrCat("entries ", expected));
}

absl::Status ReadStep(const YAML::Node& node, absl::string_view path, const std::string& name,
                      const ReadInput& read, StepTimes* step) {
  const auto of_pace = [&](const std::string& pace, const YAML::Node& at) -> absl::Status {
    absl::StatusOr<StepTimes> times = StepTimes::OfPace(pace);
    if (!times.ok()) return YamlError(path, at, absl::StrCat(name, ": ", times.status().message()));
    *step = *std::move(times);
    return absl::OkStatus();
  };
  if (node.IsScalar()) return of_pace(node.Scalar(), node);
  TANDEM_ASSIGN_OR_RETURN(
      const YamlSection section,
      YamlSection::Open(node, path, name, {"pace", "grid", "engine", "threads", "factor"}));
  TANDEM_RETURN_IF_ERROR(OneOf(section, {"pace", "grid", "engine"}));
  if (section.Has("pace")) {
    std::string pace;
    TANDEM_RETURN_IF_ERROR(section.Read("pace", &pace));
    return of_pace(pace, node);
  }
  if (section.Has("grid")) {
    std::vector<RoundTimeModel::Point> grid;
    TANDEM_RETURN_IF_ERROR(ReadGrid(section, &grid));
    *step = StepTimes(grid);
    return absl::OkStatus();
  }
  std::string file;
  uint32_t threads = 0;
  double factor = 1.0;
  TANDEM_RETURN_IF_ERROR(section.Read("engine", &file));
  TANDEM_RETURN_IF_ERROR(section.Read("threads", 1u, 4096u, &threads));
  TANDEM_RETURN_IF_ERROR(section.Read("factor", 1e-6, 1e6, &factor));
  TANDEM_ASSIGN_OR_RETURN(const std::string report, read(file));
  TANDEM_ASSIGN_OR_RETURN(*step, StepTimes::OfEngineReport(report, file, threads, factor));
  return absl::OkStatus();
}

// The fields that verifiers and drafters share.
template <class Group>
absl::Status ReadMachines(const YamlSection& section, const ReadInput& read, uint32_t least_count,
                          uint64_t least_kv_tokens, Group* group) {
  TANDEM_RETURN_IF_ERROR(section.Read("count", least_count, kMostMachines, &group->count));
  TANDEM_RETURN_IF_ERROR(section.Read("price_per_hour", 0.0, kHighestPrice, &group->price_per_hour));
  if (!section.Has("step")) return section.Unexpected("step", "how long a pass takes");
  TANDEM_RETURN_IF_ERROR(section.Visit("step", [&](const YAML::Node& step, const std::string& at) {
    return ReadStep(step, section.path(), at, read, &group->step);
  }));
  TANDEM_RETURN_IF_ERROR(section.Read("between_steps_ms", 0.0, kLongestMs, &group->between_steps_ms));
  return section.Read("kv_tokens", least_kv_tokens, kMostKvTokens, &group->kv_tokens);
}

absl::Status ReadVerifiers(const YAML::Node& node, absl::string_view path, const std::string& name,
                           const ReadInput& read, VerifierGroup* group) {
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section,
                          YamlSection::Open(node, path, name,
                                            {"count", "price_per_hour", "step", "between_steps_ms",
                                             "between_steps_per_session_ms", "max_running", "max_waiting",
                                             "prefill_chunk", "max_rows", "kv_tokens", "prefix_cache"}));
  TANDEM_RETURN_IF_ERROR(ReadMachines(section, read, 1, kBlockTokens, group));
  TANDEM_RETURN_IF_ERROR(
      section.Read("between_steps_per_session_ms", 0.0, kLongestMs, &group->between_steps_per_session_ms));
  TANDEM_RETURN_IF_ERROR(section.Read("max_running", 1u, 65536u, &group->max_running));
  TANDEM_RETURN_IF_ERROR(section.Read("max_waiting", 0u, 1u << 24, &group->max_waiting));
  TANDEM_RETURN_IF_ERROR(section.Read("prefill_chunk", 1u, 65536u, &group->prefill_chunk));
  TANDEM_RETURN_IF_ERROR(section.Read("max_rows", 2u, 65536u, &group->max_rows));
  return section.Read("prefix_cache", &group->prefix_cache);
}

absl::Status ReadDrafter(const YAML::Node& node, absl::string_view path, const std::string& name,
                         const ReadInput& read, Layout* layout) {
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section,
                          YamlSection::Open(node, path, name,
                                            {"name", "count", "price_per_hour", "step", "between_steps_ms",
                                             "max_sessions", "expand_width", "max_step_rows", "kv_tokens"}));
  DrafterGroup group;
  if (!section.Has("name")) return section.Unexpected("name", "the drafter's name");
  TANDEM_RETURN_IF_ERROR(section.Read("name", &group.name));
  const bool taken = std::any_of(layout->drafters.begin(), layout->drafters.end(),
                                 [&](const DrafterGroup& other) { return other.name == group.name; });
  if (taken || group.name == "auto" || group.name == "off" || group.name == "none") {
    return section.Unexpected("name", "a unique name other than auto, off or none");
  }
  TANDEM_RETURN_IF_ERROR(ReadMachines(section, read, 0, 64, &group));
  TANDEM_RETURN_IF_ERROR(section.Read("max_sessions", 1u, 65536u, &group.max_sessions));
  TANDEM_RETURN_IF_ERROR(section.Read("expand_width", 1u, 64u, &group.expand_width));
  TANDEM_RETURN_IF_ERROR(section.Read("max_step_rows", 1u, 512u, &group.max_step_rows));
  layout->drafters.push_back(std::move(group));
  return absl::OkStatus();
}

absl::Status ReadWindow(const YAML::Node& node, absl::string_view path, const std::string& name,
                        Layout* layout) {
  TANDEM_ASSIGN_OR_RETURN(
      const YamlSection section,
      YamlSection::Open(node, path, name,
                        {"policy", "max_depth", "nodes_per_level", "max_nodes", "branching", "lookahead",
                         "ahead_nodes", "ahead_branching", "shape"}));
  WindowLimits& limits = layout->window;
  TANDEM_RETURN_IF_ERROR(section.Read("policy", &layout->window_policy));
  if (!MakeWindowPolicy(layout->window_policy).ok()) {
    return section.Unexpected("policy", absl::StrCat("one of ", absl::StrJoin(WindowPolicyNames(), ", ")));
  }
  TANDEM_RETURN_IF_ERROR(section.Read("max_depth", 1u, kMaxTreeDepth / 2, &limits.max_depth));
  TANDEM_RETURN_IF_ERROR(section.Read("nodes_per_level", 1u, 64u, &limits.nodes_per_level));
  TANDEM_RETURN_IF_ERROR(section.Read("max_nodes", 1u, 256u, &limits.max_nodes));
  TANDEM_RETURN_IF_ERROR(
      section.Read("branching", 1u, static_cast<uint32_t>(kMostGuesses), &limits.branching));
  TANDEM_RETURN_IF_ERROR(section.Read("lookahead", 0u, kMaxTreeDepth / 2, &limits.lookahead));
  TANDEM_RETURN_IF_ERROR(section.Read("ahead_nodes", 0u, kMaxTreeNodes, &limits.ahead_nodes));
  TANDEM_RETURN_IF_ERROR(section.Read("ahead_branching", 1u, 32u, &limits.ahead_branching));
  std::string shape = "best-first";
  TANDEM_RETURN_IF_ERROR(section.Read("shape", &shape));
  const absl::StatusOr<TreeShape> parsed = ParseTreeShape(shape);
  if (!parsed.ok()) {
    return section.Unexpected("shape", absl::StrCat("one of ", absl::StrJoin(TreeShapeNames(), ", ")));
  }
  limits.shape = *parsed;
  return absl::OkStatus();
}

absl::Status ReadNetwork(const YAML::Node& node, absl::string_view path, const std::string& name,
                         Layout* layout) {
  TANDEM_ASSIGN_OR_RETURN(
      const YamlSection section,
      YamlSection::Open(node, path, name, {"client_ms", "router_ms", "verifier_ms", "drafter_ms"}));
  TANDEM_RETURN_IF_ERROR(section.Read("client_ms", 0.0, kLongestMs, &layout->client_ms));
  TANDEM_RETURN_IF_ERROR(section.Read("router_ms", 0.0, kLongestMs, &layout->router_ms));
  TANDEM_RETURN_IF_ERROR(section.Read("verifier_ms", 0.0, kLongestMs, &layout->verifier_ms));
  return section.Read("drafter_ms", 0.0, kLongestMs, &layout->drafter_ms);
}

absl::Status ReadLayout(const YAML::Node& node, absl::string_view path, const std::string& name,
                        const ReadInput& read, Layout* layout) {
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section,
                          YamlSection::Open(node, path, name,
                                            {"verifiers", "drafters", "drafter", "feedback_share",
                                             "max_concurrent_requests", "window", "network"}));
  if (!section.Has("verifiers")) return section.Unexpected("verifiers", "the machines of the target");
  TANDEM_RETURN_IF_ERROR(section.Visit("verifiers", [&](const YAML::Node& inner, const std::string& at) {
    return ReadVerifiers(inner, path, at, read, &layout->verifiers);
  }));
  TANDEM_RETURN_IF_ERROR(section.VisitList("drafters", [&](const YAML::Node& inner, const std::string& at) {
    return ReadDrafter(inner, path, at, read, layout);
  }));
  std::string drafter = layout->drafters.empty() ? "off" : "auto";
  TANDEM_RETURN_IF_ERROR(section.Read("drafter", &drafter));
  const bool known = std::any_of(layout->drafters.begin(), layout->drafters.end(),
                                 [&](const DrafterGroup& group) { return group.name == drafter; });
  if (drafter != "auto" && drafter != "off" && !known) {
    return section.Unexpected("drafter", "auto, off, or the name of a drafter of the layout");
  }
  layout->choice = drafter == "auto"  ? DrafterChoice::kAuto
                   : drafter == "off" ? DrafterChoice::kOff
                                      : DrafterChoice::kPinned;
  if (layout->choice == DrafterChoice::kPinned) layout->pinned = drafter;
  TANDEM_RETURN_IF_ERROR(section.Read("feedback_share", 0.0, 1.0, &layout->feedback_share));
  TANDEM_RETURN_IF_ERROR(
      section.Read("max_concurrent_requests", 1u, 1u << 24, &layout->max_concurrent_requests));
  TANDEM_RETURN_IF_ERROR(section.Visit("window", [&](const YAML::Node& inner, const std::string& at) {
    return ReadWindow(inner, path, at, layout);
  }));
  return section.Visit("network", [&](const YAML::Node& inner, const std::string& at) {
    return ReadNetwork(inner, path, at, layout);
  });
}

absl::Status ReadAcceptance(const YAML::Node& node, absl::string_view path, const std::string& name,
                            const ReadInput& read, AcceptanceBook* book) {
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section, YamlSection::Open(node, path, name, {"files", "rates"}));
  std::vector<std::string> files;
  TANDEM_RETURN_IF_ERROR(section.Read("files", &files));
  for (const std::string& file : files) {
    TANDEM_ASSIGN_OR_RETURN(const std::string json, read(file));
    TANDEM_RETURN_IF_ERROR(book->AddFile(json, file));
  }
  return section.VisitList("rates", [&](const YAML::Node& inner, const std::string& at) {
    TANDEM_ASSIGN_OR_RETURN(const YamlSection one,
                            YamlSection::Open(inner, path, at, {"kind", "drafter", "rates"}));
    std::string kind;
    std::string drafter;
    std::vector<double> rates;
    for (const char* const key : {"kind", "drafter", "rates"}) {
      if (!one.Has(key)) return one.Unexpected(key, "kind, drafter and rates");
    }
    TANDEM_RETURN_IF_ERROR(one.Read("kind", &kind));
    TANDEM_RETURN_IF_ERROR(one.Read("drafter", &drafter));
    TANDEM_RETURN_IF_ERROR(one.Read("rates", 0.0, 1.0, &rates));
    absl::StatusOr<Acceptance> acceptance = Acceptance::OfRates(rates);
    if (!acceptance.ok()) {
      return YamlError(path, inner, absl::StrCat(at, ".rates: ", acceptance.status().message()));
    }
    book->Add(kind, drafter, *std::move(acceptance));
    return absl::OkStatus();
  });
}

absl::Status ReadTarget(const YAML::Node& node, absl::string_view path, const std::string& name,
                        Target* target) {
  TANDEM_ASSIGN_OR_RETURN(
      const YamlSection section,
      YamlSection::Open(node, path, name,
                        {"first_token_p95_ms", "token_gap_p95_ms", "latency_p95_ms", "refused_share"}));
  const auto read = [&](absl::string_view key, std::optional<double>* value) -> absl::Status {
    if (!section.Has(key)) return absl::OkStatus();
    double ms = 0.0;
    TANDEM_RETURN_IF_ERROR(section.Read(key, 1e-3, kLongestMs, &ms));
    *value = ms;
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(read("first_token_p95_ms", &target->first_token_p95_ms));
  TANDEM_RETURN_IF_ERROR(read("token_gap_p95_ms", &target->token_gap_p95_ms));
  TANDEM_RETURN_IF_ERROR(read("latency_p95_ms", &target->latency_p95_ms));
  return section.Read("refused_share", 0.0, 1.0, &target->most_refused_share);
}

absl::Status ReadSweep(const YAML::Node& node, absl::string_view path, const std::string& name,
                       const Layout& layout, Sweep* sweep) {
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section,
                          YamlSection::Open(node, path, name, {"verifiers", "drafters", "policies", "load"}));
  TANDEM_RETURN_IF_ERROR(section.Read("verifiers", 1u, kMostMachines, &sweep->verifiers));
  const auto read_counts = [&](const std::string& drafter, const YAML::Node& value) -> absl::Status {
    const std::string at = section.NameOf("drafters");
    const bool known = std::any_of(layout.drafters.begin(), layout.drafters.end(),
                                   [&](const DrafterGroup& group) { return group.name == drafter; });
    if (!known) return UnexpectedYaml(path, value, absl::StrCat(at, ".", drafter), "a drafter of the layout");
    YAML::Node wrapped;
    wrapped[drafter] = value;
    TANDEM_ASSIGN_OR_RETURN(const YamlSection one, YamlSection::Open(wrapped, path, at, {drafter}));
    sweep->drafters.emplace_back(drafter, std::vector<uint32_t>());
    return one.Read(drafter, 0u, kMostMachines, &sweep->drafters.back().second);
  };
  TANDEM_RETURN_IF_ERROR(section.VisitMap("drafters", read_counts));
  TANDEM_RETURN_IF_ERROR(section.Read("policies", &sweep->policies));
  for (const std::string& policy : sweep->policies) {
    if (MakeWindowPolicy(policy).ok() || policy == "off") continue;
    return section.Unexpected("policies",
                              absl::StrCat("off, or among ", absl::StrJoin(WindowPolicyNames(), ", ")));
  }
  return section.Read("load", 1e-6, 1e6, &sweep->load);
}

}  // namespace

absl::StatusOr<Plan> ParsePlan(absl::string_view yaml, absl::string_view path, const ReadInput& read) {
  TANDEM_ASSIGN_OR_RETURN(const YAML::Node root, LoadYaml(yaml, path));
  TANDEM_ASSIGN_OR_RETURN(const YamlSection section,
                          YamlSection::Open(root, path, "",
                                            {"title", "notes", "traffic", "acceptance", "layout", "target",
                                             "sweep", "find_saturation"}));
  Plan plan;
  auto book = std::make_shared<AcceptanceBook>();
  TANDEM_RETURN_IF_ERROR(section.Read("title", &plan.title));
  TANDEM_RETURN_IF_ERROR(section.Read("notes", &plan.notes));
  for (const char* const key : {"traffic", "layout"}) {
    if (!section.Has(key)) return section.Unexpected(key, "traffic and layout");
  }
  TANDEM_RETURN_IF_ERROR(section.Visit("traffic", [&](const YAML::Node& node, const std::string& at) {
    return ReadTraffic(node, path, at, read, &plan.traffic);
  }));
  TANDEM_RETURN_IF_ERROR(section.Visit("acceptance", [&](const YAML::Node& node, const std::string& at) {
    return ReadAcceptance(node, path, at, read, book.get());
  }));
  TANDEM_RETURN_IF_ERROR(section.Visit("layout", [&](const YAML::Node& node, const std::string& at) {
    return ReadLayout(node, path, at, read, &plan.layout);
  }));
  TANDEM_RETURN_IF_ERROR(section.Visit("target", [&](const YAML::Node& node, const std::string& at) {
    return ReadTarget(node, path, at, &plan.target.emplace());
  }));
  TANDEM_RETURN_IF_ERROR(section.Visit("sweep", [&](const YAML::Node& node, const std::string& at) {
    return ReadSweep(node, path, at, plan.layout, &plan.sweep);
  }));
  TANDEM_RETURN_IF_ERROR(section.Read("find_saturation", &plan.find_saturation));
  if (plan.find_saturation && plan.traffic.concurrency > 0) {
    return section.Unexpected("find_saturation",
                              "traffic with a rate: clients that wait for answers saturate nothing");
  }
  plan.acceptance = std::move(book);
  return plan;
}

absl::Status ParseRecordedDay(absl::string_view lines, absl::string_view path, Traffic* traffic) {
  size_t number = 0;
  traffic->kinds.clear();
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++number;
    if (line.empty()) continue;
    const std::string where = absl::StrCat(path, ":", number);
    TANDEM_ASSIGN_OR_RETURN(const nlohmann::json json,
                            ParseStrictJson(line, where, 0, {.max_depth = 2, .max_values = 16}));
    if (!json.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": found ", PrintableValue(json), ", expected an object for a request"));
    }
    for (const auto& [key, value] : json.items()) {
      if (key == "at" || key == "tenant" || key == "kind" || key == "prompt_tokens" || key == "output_tokens")
        continue;
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": field ", PrintableText(key),
                       " is not known, expected at, tenant, kind, prompt_tokens and output_tokens"));
    }
    const JsonFields fields(json, where);
    RecordedRequest request;
    const double earliest = traffic->recorded.empty() ? 0.0 : traffic->recorded.back().at_seconds;
    TANDEM_ASSIGN_OR_RETURN(request.at_seconds, fields.NumberOr("at", earliest, kLongestRun, earliest));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> tenant, fields.String("tenant"));
    const auto known = std::find_if(
        traffic->tenants.begin(), traffic->tenants.end(),
        [&](const TenantTraffic& entry) { return !tenant.has_value() || entry.name == *tenant; });
    if (known == traffic->tenants.end()) return fields.Unexpected("tenant", "one of the plan's tenants");
    request.tenant = static_cast<uint32_t>(known - traffic->tenants.begin());
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> kind, fields.String("kind"));
    const std::string name = kind.value_or(known->kinds.front().kind);
    if (absl::Status added = AddKind(name, traffic); !added.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", added.message()));
    }
    request.kind = static_cast<uint32_t>(std::find(traffic->kinds.begin(), traffic->kinds.end(), name) -
                                         traffic->kinds.begin());
    constexpr auto kMost = static_cast<int32_t>(kMostTokens);
    TANDEM_ASSIGN_OR_RETURN(const int32_t prompt, fields.RequiredInt("prompt_tokens", 1, kMost));
    TANDEM_ASSIGN_OR_RETURN(const int32_t output, fields.RequiredInt("output_tokens", 1, kMost));
    request.prompt_tokens = static_cast<uint32_t>(prompt);
    request.output_tokens = static_cast<uint32_t>(output);
    if (traffic->recorded.size() >= kMostRecordedRequests) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": expected at most ", kMostRecordedRequests, " requests"));
    }
    traffic->recorded.push_back(request);
  }
  if (traffic->recorded.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no requests, expected one a line"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> LoadPlan(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto read = [](const std::filesystem::path& file) -> absl::StatusOr<std::string> {
    std::error_code error;
    const uintmax_t size = std::filesystem::file_size(file, error);
    if (!error && size > kMaxPlanInputBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.string(), ": ", size, " bytes, expected at most ", kMaxPlanInputBytes));
    }
    std::ifstream in(file, std::ios::binary);
    if (error || !in) return absl::InvalidArgumentError(absl::StrCat(file.string(), ": cannot be read"));
    std::ostringstream text;
    text << in.rdbuf();
    return std::move(text).str();
  };
  TANDEM_ASSIGN_OR_RETURN(const std::string yaml, read(path));
  return ParsePlan(yaml, path, [&](const std::string& name) { return read(folder / name); });
}

}  // namespace tandem::plan
