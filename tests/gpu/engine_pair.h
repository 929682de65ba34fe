#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/config/model_config.h"
#include "common/model/target_fingerprint.h"
#include "drafter/drafting/draft_core.h"
#include "gtest/gtest.h"
#include "verifier/scheduler/scheduler.h"
#include "verifier/session/held_adapters.h"

// For tests: requests from their submission to their last token, without the wire.

namespace tandem {

inline constexpr LinkId kPairLink = 4;
inline constexpr uint64_t kAnyVocabulary = 0xfeed;

// A target of few tokens, so that heads which know nothing are right now and then.
inline ModelConfig TargetOfFewTokens() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.hidden_size = 24;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.intermediate_size = 40;
  config.vocab_size = 12;
  config.max_context = 200;
  config.qk_norm = true;
  return config;
}

struct PairRequest {
  TokenIds prompt;
  SamplingParameters sampling;
  AdapterHandle adapter = nullptr;  // Of the target's engine; null: none.
};

// The results of requests that ran side by side.
struct PairOutputs {
  std::vector<TokenIds> tokens;
  uint32_t accepted_tokens = 0;
  uint32_t rounds = 0;
  uint64_t feature_bytes = 0;
};

// A verifier's scheduler and a drafter's core, each on its own engine. Messages between them arrive at once.
class EnginePair final : public SchedulerListener {
 public:
  // `target` is the model of the first engine. Texts are not looked at: any tokenizer will do.
  EnginePair(const Model& target, std::unique_ptr<Engine> target_engine, std::unique_ptr<Engine> draft_engine)
      : target_fingerprint_(TargetFingerprint(target)),
        target_engine_(std::move(target_engine)),
        draft_engine_(std::move(draft_engine)),
        tokenizer_(
            *Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m"))) {}

  PairOutputs Run(const std::vector<PairRequest>& requests, uint32_t max_tokens, bool drafted) {
    const auto draft_context = std::min(200u, static_cast<uint32_t>(draft_engine_->config().max_context));
    BlockPool target_pool({.num_blocks = target_engine_->num_blocks()});
    BlockPool draft_pool({.num_blocks = draft_engine_->num_blocks()});
    Scheduler scheduler({.prefill_chunk = 24,
                         .limits = {.max_depth = 4, .nodes_per_level = 4},
                         .window_policy = "fixed",
                         .vocabulary_fingerprint = kAnyVocabulary,
                         .target_fingerprint = target_fingerprint_},
                        target_engine_.get(), &target_pool, RoundTimeModel({{1, 0.002}, {64, 0.002}}),
                        &clock_, this);
    DraftCore core({},
                   {{.name = "draft",
                     .engine = draft_engine_.get(),
                     .pool = &draft_pool,
                     .vocabulary_fingerprint = kAnyVocabulary,
                     .context_length = draft_context}},
                   &clock_);
    outputs_ = {.tokens = std::vector<TokenIds>(requests.size())};
    scheduler.OnLinkUp(kPairLink);
    for (SessionId id = 0; id < requests.size(); ++id) {
      SessionRequest request{
          .prompt = requests[id].prompt,
          .max_tokens = max_tokens,
          .sampling = requests[id].sampling,
          .output = std::make_unique<OutputAssembler>(tokenizer_, StopRules{.max_tokens = max_tokens})};
      request.adapter = requests[id].adapter;
      if (drafted)
        request.drafter = DrafterBinding{.link = kPairLink, .name = "pair", .draft_model = "draft"};
      EXPECT_TRUE(scheduler.Submit(id, std::move(request)).ok());
    }
    for (int turn = 0; turn < 1000 && scheduler.NextWake() < absl::InfiniteFuture(); ++turn) {
      Exchange(&scheduler, &core);
      const absl::Time wake = scheduler.NextWake();
      if (wake > clock_.Now() && wake < absl::InfiniteFuture()) clock_.Advance(wake - clock_.Now());
      scheduler.Step();
      clock_.Advance(absl::Milliseconds(2));
    }
    EXPECT_EQ(scheduler.num_running() + scheduler.num_waiting(), 0u);
    Exchange(&scheduler, &core);
    outputs_.feature_bytes = core.stats().counters.feature_bytes;
    return std::move(outputs_);
  }

 private:
  void Exchange(Scheduler* scheduler, DraftCore* core) {
    for (DraftRequest& request : std::exchange(to_drafter_, {})) core->OnRequest(kPairLink, request);
    for (int i = 0; i < 8 && core->HasWork(); ++i) core->Step();
    for (const auto& [link, response] : core->TakeResponses()) {
      if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
        ADD_FAILURE() << refused->status;
      }
      scheduler->OnDraftResponse(link, response);
    }
  }

  void OnStarted(SessionId) override {}
  void OnTokens(SessionId id, CommittedTokens tokens) override {
    for (const CommittedToken& token : tokens.tokens) outputs_.tokens[id].push_back(token.token);
  }
  void OnFinished(SessionId, const absl::Status& status, const SessionSummary& summary) override {
    EXPECT_TRUE(status.ok()) << status;
    outputs_.accepted_tokens += summary.accepted_tokens;
  }
  void OnDraftRequest(LinkId, DraftRequest request) override { to_drafter_.push_back(std::move(request)); }
  void OnProtocolViolation(LinkId, absl::string_view what, bool) override { ADD_FAILURE() << what; }
  void OnRound(SessionId, const RoundReport&) override { ++outputs_.rounds; }

  const uint64_t target_fingerprint_;
  ManualClock clock_;
  std::unique_ptr<Engine> target_engine_;
  std::unique_ptr<Engine> draft_engine_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<DraftRequest> to_drafter_;
  PairOutputs outputs_;
};

}  // namespace tandem
