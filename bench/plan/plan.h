#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/plan/acceptance.h"
#include "bench/plan/step_times.h"
#include "common/speculation/policies/window_policy.h"

// The parts of a plan: the requests (Traffic), the machines that serve them (Layout), the goals (Target), and
// the variations to try (Sweep). plan_file.h reads a plan from a file, cluster.h simulates it.
namespace tandem::plan {

// The number of tokens of a prompt or an output: logarithmically normal, or constant without a deviation.
struct Lengths {
  double mean = 128.0;
  double deviation = 0.0;
  uint32_t least = 1;
  uint32_t most = 8192;
};

struct KindShare {
  std::string kind;
  double share = 1.0;
};

struct TenantTraffic {
  std::string name = "tenant";
  double share = 1.0;  // Of the requests.
  std::vector<KindShare> kinds;
  Lengths prompt;
  Lengths output{.mean = 96.0};
  uint32_t shared_prompt = 0;  // Tokens that all prompts of the tenant and kind begin with.
  // As the router's configuration has them.
  uint32_t weight = 1;
  uint32_t max_concurrent_requests = 0;
  uint32_t max_queued_requests = 64;
  uint32_t tokens_per_minute = 0;
};

// A request of a recorded day.
struct RecordedRequest {
  double at_seconds = 0.0;
  uint32_t tenant = 0;  // Indices into Traffic's.
  uint32_t kind = 0;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
};

// From `at_seconds` on, requests come at this rate.
struct RatePiece {
  double at_seconds = 0.0;
  double rate = 0.0;
};

struct Traffic {
  double seconds = 600.0;         // How long requests come, warm-up included.
  double warm_up_seconds = 30.0;  // What comes before is served, and not counted.
  uint64_t seed = 1;
  // Exactly one of these: a Poisson process of changing rate, so many requests at a time, or what was
  // recorded.
  std::vector<RatePiece> rates;
  uint32_t concurrency = 0;
  std::vector<RecordedRequest> recorded;

  std::vector<TenantTraffic> tenants;
  std::vector<std::string> kinds;  // All that tenants name.
};

// Machines that hold the target. All are alike.
struct VerifierGroup {
  uint32_t count = 1;
  double price_per_hour = 0.0;
  StepTimes step;
  // Beside the passes: from the end of one to the beginning of the next, and for each session in it.
  double between_steps_ms = 0.0;
  double between_steps_per_session_ms = 0.0;
  uint32_t max_running = 64;
  uint32_t max_waiting = 256;
  uint32_t prefill_chunk = 128;
  uint32_t max_rows = 512;
  uint64_t kv_tokens = 65536;
  bool prefix_cache = true;
};

// Machines that run one draft model. Several are a pool behind one name.
struct DrafterGroup {
  std::string name;
  uint32_t count = 1;
  double price_per_hour = 0.0;
  StepTimes step;
  double between_steps_ms = 0.0;
  uint32_t max_sessions = 256;
  uint32_t expand_width = 4;
  uint32_t max_step_rows = 128;
  uint64_t kv_tokens = 32768;
};

enum class DrafterChoice { kAuto, kPinned, kOff };

struct Layout {
  VerifierGroup verifiers;
  std::vector<DrafterGroup> drafters;

  DrafterChoice choice = DrafterChoice::kAuto;
  std::string pinned;           // With kPinned.
  double feedback_share = 0.1;  // Of the requests that all drafters are asked about afterwards.
  uint32_t max_concurrent_requests = 1024;

  std::string window_policy = "goodput";
  WindowLimits window;

  double client_ms = 0.0;    // One way between a client and the router,
  double router_ms = 0.0;    // in the router, for each request,
  double verifier_ms = 0.0;  // one way between router and verifier,
  double drafter_ms = 0.1;   // and between verifier and drafter.

  double PricePerHour() const;
};

// What a layout must reach to be good enough; absent values do not matter.
struct Target {
  std::optional<double> first_token_p95_ms;
  std::optional<double> token_gap_p95_ms;
  std::optional<double> latency_p95_ms;
  double most_refused_share = 0.001;
};

// Every combination of the values of all lists. An empty list leaves the layout's value.
struct Sweep {
  std::vector<uint32_t> verifiers;
  std::vector<std::pair<std::string, std::vector<uint32_t>>> drafters;  // Counts, by name; 0 is none.
  std::vector<std::string> policies;
  std::vector<double> load;  // Factors on the traffic's rate, or on its requests at a time.

  bool empty() const { return verifiers.empty() && drafters.empty() && policies.empty() && load.empty(); }
};

struct Plan {
  std::string title;
  // Said of every figure, where inputs were not measured on the machines that are planned for.
  std::vector<std::string> notes;
  Traffic traffic;
  Layout layout;
  std::shared_ptr<const AcceptanceBook> acceptance;
  std::optional<Target> target;
  Sweep sweep;
  bool find_saturation = false;
};

}  // namespace tandem::plan
