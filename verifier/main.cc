#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "common/config/version.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/metrics/metrics.h"
#include "common/model/model.h"
#include "common/rpc/model_wire.h"
#include "common/rpc/server.h"
#include "common/tokenizer/tokenizer.h"
#include "verifier/engine_loop.h"
#include "verifier/metrics.h"
#include "verifier/service.h"
#include "verifier/warm_up.h"

namespace tandem {
namespace {

struct VerifierFlags {
  std::string model;
  std::string listen = "127.0.0.1:7002";
  std::string metrics_listen = "127.0.0.1:9102";
  bool reflection = false;
  uint32_t threads = 1;
  std::string instruction_set = "auto";
  uint64_t kv_tokens = 65536;
  uint32_t max_running = 64;
  uint32_t max_waiting = 256;
  uint32_t prefill_chunk = 128;
  bool prefix_cache = true;
  std::string window_policy = "analytic";
  WindowLimits limits;
  absl::Duration max_draft_wait = absl::Milliseconds(100);
  absl::Duration drain_grace = absl::Seconds(30);
};

void Declare(VerifierFlags& options, Flags& flags) {
  flags.Group("Model")
      .Add("model", &options.model,
           "Target model: a Hugging Face folder, or NAME=FOLDER to serve it as NAME.")
      .Required()
      .Add("threads", &options.threads, "Threads of the engine.")
      .InRange(1, 1024)
      .AddChoice("instruction-set", &options.instruction_set, {"auto", "avx512", "avx2", "portable"},
                 "Kernels to use; auto takes the best this machine has.")
      .Add("kv-tokens", &options.kv_tokens,
           "Tokens of keys and values to hold, over all requests and the cache.")
      .InRange(256, 1e9)
      .Add("prefix-cache", &options.prefix_cache,
           "Keep keys and values of finished requests for later prompts.");
  flags.Group("Network")
      .Add("listen", &options.listen, "Address to serve gRPC on.")
      .Add("metrics-listen", &options.metrics_listen, "Address to serve /metrics on; empty for none.")
      .Add("reflection", &options.reflection, "Serve gRPC reflection.")
      .Add("drain-grace", &options.drain_grace, "How long SIGTERM waits for running requests.");
  flags.Group("Batching")
      .Add("max-running", &options.max_running, "Requests computed at once.")
      .InRange(1, 4096)
      .Add("max-waiting", &options.max_waiting, "Requests that may wait; more are refused.")
      .InRange(0, 1e6)
      .Add("prefill-chunk", &options.prefill_chunk, "Prompt tokens computed in one step.")
      .InRange(1, 4096);
  flags.Group("Speculation")
      .AddChoice("window-policy", &options.window_policy, WindowPolicyNames(), "How windows are chosen.")
      .Add("max-window", &options.limits.max_depth, "Deepest window.")
      .InRange(1, kMaxTreeDepth / 2)
      .Add("nodes-per-level", &options.limits.nodes_per_level,
           "Tree nodes verified for each level of the window.")
      .InRange(1, 64)
      .Add("max-nodes", &options.limits.max_nodes, "Tree nodes verified in one round.")
      .InRange(1, 256)
      .Add("branching", &options.limits.branching, "Candidates for one position below one node.")
      .InRange(1, 64)
      .Add("lookahead", &options.limits.lookahead,
           "Levels drafted ahead while a round is verified; 0 drafts and verifies in turns.")
      .InRange(0, kMaxTreeDepth / 2)
      .Add("max-draft-wait", &options.max_draft_wait, "Longest wait of a round for its drafter.");
}

// NAME=FOLDER, or FOLDER with its last component as the name.
std::pair<std::string, std::string> NameAndFolder(const std::string& model) {
  const size_t equals = model.find('=');
  if (equals != std::string::npos) return {model.substr(0, equals), model.substr(equals + 1)};
  std::string folder = model;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return {folder.substr(folder.rfind('/') + 1), folder};
}

absl::StatusOr<ServedTarget> LoadTarget(const VerifierFlags& options, const std::string& name,
                                        const Model& model) {
  ServedTarget target{.name = name,
                      .config = model.config(),
                      .defaults = model.generation_defaults(),
                      .max_window = options.limits.max_depth};
  TANDEM_ASSIGN_OR_RETURN(target.tokenizer, Tokenizer::Load(model.folder()));
  if (target.tokenizer->vocab_size() > target.config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(model.folder(), "/tokenizer.json: ids up to ",
                                                   target.tokenizer->vocab_size() - 1,
                                                   ", expected below the model's logits width ",
                                                   target.config.vocab_size, " (config.json: vocab_size)"));
  }
  return target;
}

absl::Status Serve(const VerifierFlags& options, ShutdownSignals& signals) {
  const absl::Time start = absl::Now();
  const auto [name, folder] = NameAndFolder(options.model);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, Model::Load(folder));
  TANDEM_ASSIGN_OR_RETURN(const ServedTarget target, LoadTarget(options, name, *model));

  MetricsRegistry registry;
  registry.AddProcessMetrics(Version());
  VerifierMetrics metrics(&registry, target.name);

  CpuEngineOptions engine_options;
  engine_options.num_blocks = static_cast<uint32_t>((options.kv_tokens + kBlockTokens - 1) / kBlockTokens);
  engine_options.num_threads = static_cast<int>(options.threads);
  TANDEM_ASSIGN_OR_RETURN(engine_options.instruction_set, ParseInstructionSet(options.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(engine_options.instruction_set));
  LoadProgress progress(target.name, model->weight_bytes());
  engine_options.progress = &progress;
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, CreateCpuEngine(model, engine_options));
  progress.Finish();
  auto pool = std::make_unique<BlockPool>(
      BlockPool::Options{.num_blocks = engine->num_blocks(), .prefix_cache = options.prefix_cache});
  TANDEM_ASSIGN_OR_RETURN(RoundTimeModel round_time, MeasureRoundTimes(engine.get(), pool.get()));
  LogInfo("target ready", {{"model", target.name},
                           {"seconds", absl::StrFormat("%.2f", absl::ToDoubleSeconds(absl::Now() - start))},
                           {"step_ms_1_row", absl::StrFormat("%.3f", 1e3 * round_time.Seconds(1))},
                           {"step_ms_16_rows", absl::StrFormat("%.3f", 1e3 * round_time.Seconds(16))}});

  const SystemClock clock;
  const uint64_t fingerprint = target.tokenizer->Fingerprint(target.config.vocab_size);
  const uint64_t kv_tokens_total = uint64_t{pool->num_blocks()} * kBlockTokens;
  EngineLoop loop({.max_running = options.max_running,
                   .max_waiting = options.max_waiting,
                   .prefill_chunk = options.prefill_chunk,
                   .limits = options.limits,
                   .window_policy = options.window_policy,
                   .max_draft_wait = options.max_draft_wait,
                   .vocabulary_fingerprint = fingerprint},
                  std::move(engine), std::move(pool), std::move(round_time), &clock, &metrics);
  VerifierService service(&target, &loop, &metrics);

  const v1::ModelInfo model_info = ModelInfoToProto(target.name, *model, fingerprint);
  const auto server_info = [&] {
    const EngineLoop::Load load = loop.load();
    v1::ServerInfo info;
    info.set_role(v1::SERVER_ROLE_VERIFIER);
    info.set_version(std::string(Version()));
    info.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - start));
    *info.add_models() = model_info;
    info.set_running(load.running);
    info.set_waiting(load.waiting);
    info.set_kv_tokens_used(load.kv_tokens_used);
    info.set_kv_tokens_total(kv_tokens_total);
    info.set_window_policy(options.window_policy);
    info.set_device(absl::StrCat("cpu (", kernels->name, ")"));
    return info;
  };
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<ServerRunner> server,
      ServerRunner::Start({.listen_address = options.listen,
                           .metrics_address = options.metrics_listen,
                           .metrics = &registry,
                           .reflection = options.reflection},
                          {{v1::Verifier::service_full_name(), &service}}, {.server_info = server_info}));
  LogInfo("serving",
          {{"address", server->address()}, {"metrics_port", absl::StrCat(server->metrics_port())}});
  signals.Wait();
  LogInfo("draining", {{"grace", absl::FormatDuration(options.drain_grace)}});
  server->Drain(options.drain_grace, [&](absl::Time deadline) {
    service.StopAdmission();
    loop.WaitUntilIdle(deadline);
  });
  return absl::OkStatus();
}

int Main(int argc, const char* const* argv) {
  ShutdownSignals signals;
  VerifierFlags options;
  Flags flags(
      "tandem-verifier", "verifier",
      "Holds a target model, verifies candidate trees of many requests in one batch, and commits tokens.");
  Declare(options, flags);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  absl::Status status;
  if (flags.check_config()) {
    const auto [name, folder] = NameAndFolder(options.model);
    absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(folder);
    status = model.ok() ? LoadTarget(options, name, **model).status() : model.status();
    if (status.ok()) LogInfo("the configuration is valid", {{"model", name}});
  } else {
    status = Serve(options, signals);
  }
  if (status.ok()) return kExitOk;
  LogError("cannot serve", {{"error", status.ToString()}});
  return kExitFailure;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}
