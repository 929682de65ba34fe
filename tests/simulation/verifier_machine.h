#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/testing/fake_engine.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/findings.h"
#include "tests/simulation/random.h"
#include "tests/simulation/session_owner.h"
#include "verifier/scheduler/drafter_pools.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem::simulation {

// The verifier's process: the real Scheduler on a fake model.
class VerifierMachine final : public Machine, private SchedulerListener {
 public:
  struct Options {
    FakeEngine::Options model;
    Scheduler::Options scheduler;
    absl::Duration per_step = absl::Milliseconds(8);
    absl::Duration per_row = absl::Microseconds(20);
    uint64_t chance = 1;  // Seed of what its pools leave to chance.
  };
  using Send = std::function<void(absl::Time departure, LinkId link, DraftRequest)>;
  using Violation = std::function<void(LinkId link, absl::string_view what)>;
  VerifierMachine(EventQueue* queue, const Options& options, Send send, Violation violation,
                  Findings* findings);

  // `owner` outlives the machine.
  void Submit(SessionOwner* owner);
  void Cancel(SessionId session);
  void Swap(SessionId session, const DrafterBinding& to);
  void OnLinkUp(LinkId link);
  void OnLinkDown(LinkId link);
  void OnResponse(LinkId link, DraftResponse response);
  // See DrafterPools::SetMembers.
  void SetMembers(PoolId pool, std::vector<LinkId> members);

  uint64_t num_moves() const { return num_moves_; }
  uint64_t num_swaps() const { return num_swaps_; }
  uint64_t num_refused_swaps() const { return num_refused_swaps_; }
  uint64_t num_drafter_changes() const { return num_drafter_changes_; }
  const FakeEngine& model() const { return model_; }
  // Once every request has ended.
  void CheckEmpty();

 private:
  void Work(bool was_due) override;
  void CheckBlocks();
  void StartSwap(SessionId session, const DrafterBinding& to);
  void MoveSessions();
  absl::Time NextWork() const override {
    return in_flight_ ? absl::InfinitePast() : std::min(scheduler_->NextWake(), pools_.NextPlan());
  }

  void OnStarted(SessionId session) override;
  void OnTokens(SessionId session, CommittedTokens tokens) override;
  void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) override;
  void OnDrafterChanged(SessionId session, const DrafterBinding& binding) override {
    pools_.OnDrafterChanged(session, binding);
    ++num_drafter_changes_;
  }
  void OnSwapEnded(SessionId session, const absl::Status& status) override;
  void OnDraftRequest(LinkId link, DraftRequest request) override {
    send_(clock().queue_now(), link, request);
  }
  void OnProtocolViolation(LinkId link, absl::string_view what, bool) override { violation_(link, what); }

  const Options options_;
  const Send send_;
  const Violation violation_;
  Findings* const findings_;
  FakeEngine model_;
  TimedEngine engine_;
  BlockPool pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<SessionId, SessionOwner*> owners_;
  Random chance_;
  DrafterPools pools_;
  uint64_t num_moves_ = 0;          // Between members of a pool.
  bool in_flight_ = false;          // Between a step's forward pass and its conclusion.
  uint64_t num_happenings_ = 0;     // Sessions started and ended, and swaps ended.
  std::map<SessionId, int> swaps_;  // Under way, each at most one.
  uint64_t num_swaps_ = 0;
  uint64_t num_refused_swaps_ = 0;
  uint64_t num_drafter_changes_ = 0;
};

}  // namespace tandem::simulation
