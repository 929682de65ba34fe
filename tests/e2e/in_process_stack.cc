#include "tests/e2e/in_process_stack.h"

#include <atomic>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/engine.h"
#include "common/model/target_fingerprint.h"
#include "router/config/config.h"
#include "router/models/served_model.h"
#include "tandem/v1/config.pb.h"

namespace tandem::e2e {
namespace {

constexpr char kLoopback[] = "127.0.0.1:0";
constexpr char kTarget[] = "tandem-target-15m";
constexpr uint32_t kTargetBlocks = 1024;
constexpr uint32_t kMaxRunning = 16;

// Step times are made up: windows are chosen by them, and windows steer speed only.
RoundTimeModel PlausibleRoundTimes() {
  return RoundTimeModel({{.rows = 1, .seconds = 0.002}, {.rows = 64, .seconds = 0.010}});
}

}  // namespace

std::string DemoModelFolder(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/", name);
}

TestDrafter::TestDrafter() : target_(DemoModelFolder(kTarget)) {
  std::vector<ModelSpec> specs;
  for (absl::string_view name : kDrafters) {
    specs.push_back({std::string(name), DemoModelFolder(absl::StrCat("tandem-draft-", name))});
  }
  for (const char* source : {"ngram:min=1", "suffix:min=1", "trie"}) {
    specs.push_back(ParseModelSpecs({source}).value()[0]);
  }
  for (const char* head : {"eagle3", "medusa"}) {
    specs.push_back({head, DemoModelFolder(absl::StrCat("tandem-", head, "-15m"))});
  }
  specs.push_back({"mtp", target_.folder()});
  const auto merges = ParseMergeSpecs({"general-1m-suffix=general-1m+suffix:min=1",
                                       "eagle3-ngram=eagle3+ngram:min=1", "medusa-ngram=medusa+ngram:min=1"},
                                      specs)
                          .value();
  host_ = ModelHost::Open(specs, merges, target_.folder()).value();
  const absl::Status loaded = host_->Load({});
  assert(loaded.ok());
  DraftConstraints::Vocabularies vocabularies;
  for (const ModelHost::Description& model : host_->descriptions()) {
    vocabularies.push_back({model.name, model.vocabulary_fingerprint, model.grammar_vocabulary});
  }
  service_.Serve(
      {}, host_->draft_models(),
      std::make_unique<DraftConstraints>(ConstraintFlags{}, vocabularies, &clock_, &constraint_metrics_));
  server_ =
      ServerRunner::Start({.listen_address = kLoopback}, {{v1::Drafter::service_full_name(), &service_}}, {})
          .value();
}

TestVerifier::TestVerifier(const VerifierSetup& setup, std::shared_ptr<const Model> model,
                           std::shared_ptr<const Tokenizer> tokenizer)
    : target_{.name = setup.name,
              .config = model->config(),
              .defaults = model->generation_defaults(),
              .tokenizer = std::move(tokenizer),
              .max_window = WindowLimits{}.max_depth,
              .max_length =
                  std::min(static_cast<uint32_t>(model->config().max_context), kTargetBlocks * kBlockTokens)},
      metrics_(&registry_, setup.name) {
  CpuEngineOptions engine_options;
  engine_options.num_blocks = kTargetBlocks;
  engine_options.num_threads = setup.threads;
  engine_options.weight_type = setup.weight_type;
  std::unique_ptr<Engine> engine = CreateCpuEngine(model, engine_options).value();
  auto pool = std::make_unique<BlockPool>(
      BlockPool::Options{.num_blocks = engine->num_blocks(), .prefix_cache = setup.prefix_cache});
  Scheduler::Options options;
  options.max_running = kMaxRunning;
  options.prefill_chunk = setup.prefill_chunk;
  options.limits.lookahead = setup.lookahead;
  options.limits.shape = setup.shape;
  if (setup.local_drafter != nullptr) options.local_drafter = ParseSourceSpec(setup.local_drafter).value();
  options.vocabulary_fingerprint = target_.tokenizer->Fingerprint(target_.config.vocab_size);
  options.target_fingerprint = TargetFingerprint(*model);
  loop_ = std::make_unique<EngineLoop>(options, std::move(engine), std::move(pool), PlausibleRoundTimes(),
                                       &clock_, &metrics_);
  service_ = std::make_unique<VerifierService>(&target_, loop_.get(), &metrics_);
  constraints_ = StartConstraintCompiler({}, VocabularyOf(target_), &clock_, &constraint_metrics_);
  service_->ServeConstraints(constraints_.get());
  server_ = ServerRunner::Start({.listen_address = kLoopback},
                                {{v1::Verifier::service_full_name(), service_.get()}}, {})
                .value();
}

InProcessStack::InProcessStack(const std::vector<VerifierSetup>& setups) {
  const std::string folder = DemoModelFolder(kTarget);
  const std::shared_ptr<const Model> model = Model::Load(folder).value();
  const std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::Load(folder).value();
  for (const VerifierSetup& setup : setups) {
    verifiers_.push_back(std::make_unique<TestVerifier>(setup, model, tokenizer));
  }
  StartRouter();
}

InProcessStack::~InProcessStack() {
  server_.reset();
}

void InProcessStack::StartRouter() {
  v1::RouterConfig config;
  config.set_allow_anonymous(true);
  router::Router::Options options;
  for (const auto& verifier : verifiers_) {
    v1::TargetModelConfig& model = *config.add_models();
    model.set_name(verifier->name());
    model.set_folder(DemoModelFolder(kTarget));
    model.add_verifiers(verifier->endpoint());
    options.models.push_back(router::LoadServedModel(model.name(), model.folder()).value());
  }
  const auto add_drafter = [&](absl::string_view name, const std::string& endpoint,
                               absl::string_view draft_model) {
    v1::DrafterConfig& drafter = *config.add_drafters();
    drafter.set_name(std::string(name));
    drafter.set_endpoint(endpoint);
    drafter.set_draft_model(std::string(draft_model));
  };
  for (absl::string_view name : kDrafters) add_drafter(name, drafter_.endpoint(), name);
  for (absl::string_view name : kHeads) add_drafter(name, drafter_.endpoint(), name);
  for (absl::string_view name : kSourceDrafters) add_drafter(name, drafter_.endpoint(), name);
  add_drafter(kUnreachableDrafter, "unix:/nonexistent/drafter.sock", kDrafters[0]);
  add_drafter(kUnknownDraftModel, drafter_.endpoint(), "no-such-model");

  auto next = std::make_shared<std::atomic<uint64_t>>(1);
  options.routing = router::RoutingState::InMemory(config).value();
  options.clock = &clock_;
  options.metrics = &metrics_;
  options.draw = [next] { return next->fetch_add(1); };
  router_ = std::make_unique<router::Router>(std::move(options));
  service_ = std::make_unique<router::GenerationService>(*router_);
  server_ = ServerRunner::Start({.listen_address = kLoopback},
                                {{v1::Generation::service_full_name(), service_.get()}},
                                router::MakeAdminCallbacks(*router_, clock_.Now()))
                .value();
}

const TestVerifier& InProcessStack::verifier(absl::string_view name) const {
  for (const auto& verifier : verifiers_) {
    if (verifier->name() == name) return *verifier;
  }
  assert(false);
  return *verifiers_.front();
}

}  // namespace tandem::e2e
