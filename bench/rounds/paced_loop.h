#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/token.h"
#include "common/drafting/source_host.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/engine/paced_engine.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/sampling_parameters.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter/drafting/draft_core.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem::bench {

// The simulated time of one of the two machines.
class SimulatedClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void MoveTo(absl::Time now) { now_ = now; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// Computes what the inner engine computes, and takes simulated time for it from Start on, by its pace.
class SimulatedEngine final : public Engine {
 public:
  // All pointers outlive this.
  SimulatedEngine(Engine* engine, const Pace& pace, SimulatedClock* clock)
      : engine_(engine), pace_(pace), clock_(clock) {}

  const ModelConfig& config() const override { return engine_->config(); }
  uint32_t num_blocks() const override { return engine_->num_blocks(); }
  uint32_t max_rows() const override { return engine_->max_rows(); }
  bool has_features() const override { return engine_->has_features(); }
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status Start(absl::Span<const StepRow> rows) override;
  absl::Status Finish() override;
  bool overlaps() const override { return true; }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_->CopyKv(copies); }

  // The step that was started takes so much longer.
  void Delay(absl::Duration by) {
    end_ += by;
    busy_ += by;
  }
  absl::Time end() const { return end_; }  // Of the last step.
  absl::Duration busy() const { return busy_; }
  uint64_t rows() const { return rows_; }

 private:
  void Spend(absl::Span<const StepRow> rows);

  Engine* const engine_;
  const Pace pace_;
  SimulatedClock* const clock_;
  absl::Time end_;
  absl::Duration busy_;
  uint64_t rows_ = 0;
};

// A verifier and a drafter, each on its own machine. Protocol logic and models of both are real; the duration
// of passes and messages is simulated, and nothing else takes time. So the effects of drafting ahead, waiting
// and choosing windows can be counted, with the same digits in every run on any machine.
class PacedLoop final : private SchedulerListener {
 public:
  struct Options {
    WindowLimits limits;
    std::string window_policy = "goodput";
    std::optional<SourceSpec> local_drafter;
    uint32_t expand_width = 4;
    Pace target_pace;
    Pace draft_pace;
    absl::Duration link = absl::Microseconds(100);  // That a message is on its way.
    uint32_t concurrency = 1;                       // Requests at a time.
    // How much a pass of the target is slowed down by a step of the drafter that begins during it, as a share
    // of the step: 0 on machines of their own, 1 on one core.
    double shared = 0.0;
  };
  // The engines are used by nobody else; they and the tokenizer outlive this. Fails when their vocabularies
  // differ in width.
  static absl::StatusOr<std::unique_ptr<PacedLoop>> Make(const Options& options, Engine* target,
                                                         Engine* drafter,
                                                         std::shared_ptr<const Tokenizer> tokenizer);

  struct Request {
    TokenIds prompt;
    SamplingParameters sampling;
    uint32_t max_tokens = 0;
    bool drafted = true;  // By the drafter, and by the verifier itself where it has a source.
  };
  struct Report {
    std::vector<TokenIds> outputs;  // By request.
    absl::Duration time;            // From the first request to the last token.
    uint64_t tokens = 0;
    uint64_t rounds = 0;        // Without those that end a prompt,
    uint64_t drafted = 0;       // with candidates,
    uint64_t hits = 0;          // that were there at once,
    uint64_t after_misses = 0;  // rounds whose predecessor's last token was in no candidate, while drafting,
    uint64_t nodes = 0;         // candidates verified
    uint64_t accepted = 0;      // and accepted.
    absl::Duration waited;      // For the drafter, over all rounds.
    absl::Duration verifier_busy;
    absl::Duration drafter_busy;
    uint64_t draft_rows = 0;

    double TokensPerSecond() const { return static_cast<double>(tokens) / absl::ToDoubleSeconds(time); }
  };
  // Runs the requests, so many at a time, in order, to their last tokens: end-of-text tokens do not end them.
  // What has been learned of the drafter is kept from one call to the next.
  absl::StatusOr<Report> Run(const std::vector<Request>& requests);

 private:
  PacedLoop(const Options& options, Engine* target, Engine* drafter,
            std::shared_ptr<const Tokenizer> tokenizer);

  absl::Status SubmitNext();
  absl::Time VerifierDue() const;
  absl::Time DrafterDue() const;
  absl::Status RunVerifier(absl::Time now);
  void RunDrafter(absl::Time now);
  void SendResponses(absl::Time now);

  void OnStarted(SessionId) override {}
  void OnTokens(SessionId session, CommittedTokens tokens) override;
  void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) override;
  void OnRound(SessionId session, const RoundReport& report) override;
  void OnDraftRequest(LinkId link, DraftRequest request) override;
  void OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) override;

  const Options options_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  SimulatedClock verifier_clock_;
  SimulatedClock drafter_clock_;
  SimulatedEngine target_;
  SimulatedEngine draft_model_;
  BlockPool target_pool_;
  BlockPool draft_pool_;
  DraftCore core_;
  Scheduler scheduler_;
  bool in_flight_ = false;
  absl::Time drafter_free_;
  std::deque<std::pair<absl::Time, DraftRequest>> requests_;    // With when they arrive.
  std::deque<std::pair<absl::Time, DraftResponse>> responses_;  // Likewise.

  SessionId last_session_ = 0;
  const std::vector<Request>* work_ = nullptr;
  size_t num_submitted_ = 0;
  size_t num_finished_ = 0;
  absl::flat_hash_map<SessionId, size_t> request_of_;
  Report report_;
  absl::Status failure_;
};

}  // namespace tandem::bench
