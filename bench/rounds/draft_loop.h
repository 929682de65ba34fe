#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/token.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/sampling_parameters.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter/drafting/draft_core.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem::bench {

// A verifier and a drafter in one thread, with only queues between them: the protocol logic of both, on the
// caller's engines. This is the textbook loop: the drafter finishes drafting before each forward pass of the
// target, and no time is measured or waited for. It shows how many tokens a round makes.
class DraftLoop final : private SchedulerListener {
 public:
  struct Options {
    WindowLimits limits;  // Every tree is as large as they allow.
    // Nodes of a tree forwarded in a step. With 1 growth is exactly best-first.
    uint32_t expand_width = 4;
    // Whether the drafter's trees grow by what it has learned of its scores, which every request adds to.
    bool calibrated_growth = true;
    // Whether the drafter is told of the request's temperature and seed, or takes its own most likely tokens.
    bool seeded = true;
    // What a draft head is fed with.
    FeatureType feature_type = FeatureType::kBf16;
    uint32_t prefill_chunk = 128;
    // From the drafter's token ids to the target's; null: they are the same.
    std::shared_ptr<const VocabularyBridge> bridge;
    std::shared_ptr<const TextBridge> text;  // Not null: it drafts by text.
    bool prefix_cache = true;                // Of the verifier,
    bool drafter_prefix_cache = true;        // and of the drafter.
  };
  // The engines are used by nobody else; they and the tokenizer outlive this. Fails when their vocabularies
  // differ in width and there is no bridge, or it is between other ones.
  static absl::StatusOr<std::unique_ptr<DraftLoop>> Make(const Options& options, Engine* target,
                                                         Engine* drafter,
                                                         std::shared_ptr<const Tokenizer> tokenizer);

  struct Output {
    TokenIds tokens;
    uint32_t rounds = 0;
    uint32_t drafted_rounds = 0;
    uint32_t draft_tokens = 0;
    uint32_t accepted_tokens = 0;
    uint32_t cached_prompt_tokens = 0;
  };
  // One request, to its last token: end-of-text tokens do not end it. What the verifier has learned of the
  // drafter's scores is kept from one request to the next.
  absl::StatusOr<Output> Generate(const TokenIds& prompt, const SamplingParameters& sampling,
                                  uint32_t max_tokens);

 private:
  DraftLoop(const Options& options, Engine* target, Engine* drafter,
            std::shared_ptr<const Tokenizer> tokenizer);

  // Delivers messages both ways until nobody has anything to say.
  void Exchange();

  void OnStarted(SessionId) override {}
  void OnTokens(SessionId session, CommittedTokens tokens) override;
  void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) override;
  void OnDraftRequest(LinkId link, DraftRequest request) override;
  void OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) override;

  const Options options_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  ManualClock clock_;
  BlockPool target_pool_;
  BlockPool draft_pool_;
  DraftCore core_;
  Scheduler scheduler_;
  std::vector<DraftRequest> requests_;  // On their way to the drafter.
  SessionId last_session_ = 0;
  Output output_;
  std::optional<absl::Status> finished_;
  absl::Status violation_;
};

}  // namespace tandem::bench
