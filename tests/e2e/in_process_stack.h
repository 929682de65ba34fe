#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/engine/weight_type.h"
#include "common/metrics/metrics.h"
#include "common/model/model.h"
#include "common/rpc/constraint_service.h"
#include "common/rpc/server.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter/models/model_host.h"
#include "drafter/rpc/service.h"
#include "router/serving/router.h"
#include "router/serving/service.h"
#include "tests/e2e/next_token_target.h"
#include "verifier/rpc/engine_loop.h"
#include "verifier/rpc/service.h"

namespace tandem::e2e {

// The demo drafters, by their names at the stack's router.
inline constexpr absl::string_view kDrafters[] = {"general-1m", "code-1m", "math-1m", "general-4m"};
// Draft models without weights, and one that is merged with such a source.
inline constexpr absl::string_view kSourceDrafters[] = {"ngram", "suffix", "trie", "general-1m-suffix"};
// Draft heads of the demo target, alone and merged with a source.
inline constexpr absl::string_view kHeads[] = {"eagle3", "eagle3-ngram", "medusa", "medusa-ngram", "mtp"};
// Drafters that the router knows and that cannot draft. Nothing listens at the first one's endpoint; the
// second one names a draft model that its endpoint does not have.
inline constexpr absl::string_view kUnreachableDrafter = "unreachable";
inline constexpr absl::string_view kUnknownDraftModel = "unknown-model";

// How a verifier computes. No setting except the last may change an output.
struct VerifierSetup {
  std::string name;  // Of the target model, by which requests choose the verifier.
  uint32_t prefill_chunk = 128;
  uint32_t lookahead = 8;
  bool prefix_cache = true;
  int threads = 1;
  TreeShape shape = TreeShape::kBestFirst;
  const char* local_drafter = nullptr;
  WeightType weight_type = WeightType::kAsInFile;  // Of the model, and so the one that changes outputs.
};

// A drafter with the demo draft models.
class TestDrafter {
 public:
  TestDrafter();
  const std::string& endpoint() const { return server_->address(); }

 private:
  const NextTokenTarget target_;
  MetricsRegistry registry_;
  DrafterMetrics metrics_{&registry_};
  const SystemClock clock_;
  ConstraintMetrics constraint_metrics_{&registry_, "tandem_drafter"};
  std::unique_ptr<ModelHost> host_;
  DrafterService service_{&metrics_};
  std::unique_ptr<ServerRunner> server_;
};

// A verifier with the demo target.
class TestVerifier {
 public:
  TestVerifier(const VerifierSetup& setup, std::shared_ptr<const Model> model,
               std::shared_ptr<const Tokenizer> tokenizer);
  const std::string& name() const { return target_.name; }
  const std::string& endpoint() const { return server_->address(); }
  EngineLoop::Load load() const { return loop_->load(); }

 private:
  const SystemClock clock_;
  ServedTarget target_;
  MetricsRegistry registry_;
  VerifierMetrics metrics_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<VerifierService> service_;
  std::unique_ptr<ServerRunner> server_;
  ConstraintMetrics constraint_metrics_{&registry_, "tandem_verifier"};
  std::unique_ptr<ConstraintCompiler> constraints_;  // Ends first: it calls the service.
};

// One drafter, a verifier for each setup, and a router that serves each verifier as its own model, all on
// free ports of this process. Anonymous callers may use everything; drafters draft for callers that name one.
class InProcessStack {
 public:
  explicit InProcessStack(const std::vector<VerifierSetup>& setups);
  ~InProcessStack();

  const std::string& router_endpoint() const { return server_->address(); }
  const std::string& drafter_endpoint() const { return drafter_.endpoint(); }
  const TestVerifier& verifier(absl::string_view name) const;

 private:
  void StartRouter();

  TestDrafter drafter_;
  std::vector<std::unique_ptr<TestVerifier>> verifiers_;
  const SystemClock clock_;
  MetricsRegistry registry_;
  router::RouterMetrics metrics_{&registry_};
  std::unique_ptr<router::Router> router_;
  std::unique_ptr<router::GenerationService> service_;
  std::unique_ptr<ServerRunner> server_;
};

// Folder of a demo model, such as "tandem-target-15m".
std::string DemoModelFolder(absl::string_view name);

}  // namespace tandem::e2e
