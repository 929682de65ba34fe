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

// The parts of a plan: the requests (Traffic), the servers (Layout), the wanted latencies (Target), and the
// values to try out (Sweep). plan_file.h reads a plan from a file, cluster.h simulates it.
namespace tandem::plan {

// How many tokens a prompt or an output has: log-normally distributed, or always the mean if the deviation is
// 0.
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
  uint32_t shared_prompt = 0;  // Tokens at the beginning that all prompts of the tenant and kind share.
  // As in the router's configuration.
  uint32_t weight = 1;
  uint32_t max_concurrent_requests = 0;
  uint32_t max_queued_requests = 64;
  uint32_t tokens_per_minute = 0;
};

// One request of a recorded day.
struct RecordedRequest {
  double at_seconds = 0.0;
  uint32_t tenant = 0;  // Index into Traffic::tenants; the next one into Traffic::kinds.
  uint32_t kind = 0;
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
};

// The rate of requests per second from `at_seconds` on.
struct RatePiece {
  double at_seconds = 0.0;
  double rate = 0.0;
};

struct Traffic {
  double seconds = 600.0;         // How long requests arrive, including the warm-up.
  double warm_up_seconds = 30.0;  // Requests of the warm-up are served, but not counted.
  uint64_t seed = 1;
  // A Poisson process with these rates; or a closed loop with so many requests in flight; or a recorded day.
  // A closed loop may take its requests from a recorded day.
  std::vector<RatePiece> rates;
  uint32_t concurrency = 0;
  std::vector<RecordedRequest> recorded;

  std::vector<TenantTraffic> tenants;
  std::vector<std::string> kinds;  // All kinds that tenants name.
};

// The verifiers. All are alike.
struct VerifierGroup {
  uint32_t count = 1;
  double price_per_hour = 0.0;
  StepTimes step;
  // The time from the end of a step to the beginning of the next: a constant, and an addition for each
  // session of the step.
  double between_steps_ms = 0.0;
  double between_steps_per_session_ms = 0.0;
  uint32_t max_running = 64;
  uint32_t max_waiting = 256;
  uint32_t prefill_chunk = 128;
  uint32_t max_rows = 512;
  uint64_t kv_tokens = 65536;
  bool prefix_cache = true;
};

// Drafters that run the same draft model. Several of them are a pool.
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
  double feedback_share = 0.1;  // Share of the finished requests that all drafters score.
  uint32_t max_concurrent_requests = 1024;

  std::string window_policy = "goodput";
  WindowLimits window;

  double client_ms = 0.0;    // One way, between client and router.
  double router_ms = 0.0;    // In the router, for each request.
  double verifier_ms = 0.0;  // One way, between router and verifier.
  double drafter_ms = 0.1;   // One way, between verifier and drafter.

  double PricePerHour() const;
};

// The limits that a layout must keep. A limit that is absent does not apply.
struct Target {
  std::optional<double> first_token_p95_ms;
  std::optional<double> token_gap_p95_ms;
  std::optional<double> latency_p95_ms;
  double most_refused_share = 0.001;
};

// The values to try out: every combination of one value of each list. An empty list keeps the layout's value.
struct Sweep {
  std::vector<uint32_t> verifiers;
  std::vector<std::pair<std::string, std::vector<uint32_t>>> drafters;  // Counts, by name; 0 is none.
  std::vector<std::string> policies;
  std::vector<double> load;  // Factors on the traffic's rate, or on its requests in flight.

  bool empty() const { return verifiers.empty() && drafters.empty() && policies.empty() && load.empty(); }
};

struct Plan {
  std::string title;
  // Printed with the figures; for example, which inputs were not measured on the planned machines.
  std::vector<std::string> notes;
  Traffic traffic;
  Layout layout;
  std::shared_ptr<const AcceptanceBook> acceptance;
  std::optional<Target> target;
  Sweep sweep;
  bool find_saturation = false;
};

}  // namespace tandem::plan
