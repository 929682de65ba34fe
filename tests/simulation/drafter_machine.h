#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/drafting/source_host.h"
#include "common/engine/block_pool.h"
#include "common/testing/fake_engine.h"
#include "common/testing/feature_checker.h"
#include "drafter/drafting/draft_core.h"
#include "drafter/testing/fake_stop_head.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/findings.h"
#include "tests/simulation/liar.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {

// A drafter's process: the real DraftCore on a fake model.
class DrafterMachine final : public Machine {
 public:
  struct Options {
    FakeEngine::Options model;
    uint32_t context_length = 256;
    std::optional<SourceSpec> source;  // Merged with what the model drafts.
    uint64_t vocabulary_fingerprint = 0;
    // Between its model's tokens and the verifiers', which have this fingerprint; null: they are the same.
    std::shared_ptr<const VocabularyBridge> bridge;
    uint64_t bridged_fingerprint = 0;
    DraftCore::Options core;
    absl::Duration per_step = absl::Microseconds(300);
    absl::Duration per_row = absl::Microseconds(20);
    // How likely it is to heed a session's constraint, and how long that takes to compile.
    double compiles = 1.0;
    absl::Duration compile_time;
    bool byzantine = false;
    // It asks for these as a head does, and finds it out if they are not what the target computes. What it
    // drafts does not depend on them.
    std::optional<FeatureNeeds> features;
  };
  using Reply = std::function<void(absl::Time departure, uint64_t connection, DraftResponse)>;
  DrafterMachine(EventQueue* queue, const Options& options, Random random, Reply reply, Findings* findings);
  ~DrafterMachine() override;

  void OnRequest(uint64_t connection, DraftRequest request);
  void OnClosed(uint64_t connection);
  // Forgets everything, as a new process does.
  void Restart();

  bool byzantine() const { return liar_.has_value(); }
  DraftStats stats() const { return core_->stats(); }
  // Rows of features that were right, and commits that had some.
  uint64_t num_feature_rows() const { return num_feature_rows_; }
  uint64_t num_feature_commits() const { return num_feature_commits_; }
  // Once every request has ended: every session was closed.
  void CheckClosed();
  // Once every connection has ended as well: nothing may be left of any session.
  void CheckEmpty();

  static constexpr char kModelName[] = "draft";

 private:
  void Work(bool was_due) override;
  absl::Time NextWork() const override {
    return core_->HasWork() ? absl::InfinitePast() : absl::InfiniteFuture();
  }
  void Start();
  void Send(uint64_t connection, DraftResponse response);
  void CompileConstraint(uint64_t connection, const DraftRequest& request);
  int32_t vocab_size() const {
    return options_.bridge == nullptr ? options_.model.vocab_size : options_.bridge->target_width();
  }
  void CheckFeatures(uint64_t connection, const DraftRequest& request);

  const Options options_;
  const Reply reply_;
  Findings* const findings_;
  EventQueue* const queue_;
  Random random_;
  std::optional<Liar> liar_;
  const FakeEngine target_;                                            // For what it computes.
  std::map<std::pair<uint64_t, SessionId>, FeatureChecker> checkers_;  // By connection.
  uint64_t num_feature_rows_ = 0;
  uint64_t num_feature_commits_ = 0;
  uint64_t last_connection_ = 0;
  std::unique_ptr<FakeEngine> model_;
  std::unique_ptr<TimedEngine> engine_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<SourceHost> source_;  // These outlive the core.
  FakeStopHead stop_head_;
  std::unique_ptr<DraftCore> core_;
};

}  // namespace tandem::simulation
