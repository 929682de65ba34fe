#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bench/plan/plan.h"
#include "bench/plan/plan_engine.h"
#include "common/base/philox.h"
#include "common/engine/block_pool.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter/drafting/draft_core.h"
#include "verifier/scheduler/drafter_pools.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem::plan {

// The vocabulary fingerprint of all machines of a plan.
inline constexpr uint64_t kPlanFingerprint = 1;

// Messages on their way to a machine, in the order of arrival, and at the same moment in the order of
// sending.
template <class Message>
class Inbox {
 public:
  void Push(absl::Time arrival, Message message) {
    // Nearly everything arrives in the order in which it is sent.
    auto at = messages_.end();
    while (at != messages_.begin() && std::prev(at)->first > arrival) --at;
    messages_.emplace(at, arrival, std::move(message));
  }
  bool empty() const { return messages_.empty(); }
  absl::Time next() const { return messages_.empty() ? absl::InfiniteFuture() : messages_.front().first; }
  Message Pop() {
    Message message = std::move(messages_.front().second);
    messages_.pop_front();
    return message;
  }

 private:
  std::deque<std::pair<absl::Time, Message>> messages_;
};

// A tokenizer of the plan's vocabulary, whose texts nobody reads.
absl::StatusOr<std::shared_ptr<const Tokenizer>> MakePlanTokenizer();

// The drafters' places in a layout: each machine has a link, and a group of several machines is a pool.
struct DrafterPlaces {
  struct Group {
    std::string name;
    LinkId first_link = 0;
    uint32_t count = 0;
    PoolId pool = 0;  // 0: a single machine.
  };
  std::vector<Group> groups;

  static DrafterPlaces Of(const Layout& layout);
  DrafterBinding BindingOf(size_t group) const;
};

// A verifier's events of its sessions, at its clock's time.
class VerifierEvents {
 public:
  virtual ~VerifierEvents() = default;
  virtual void OnStarted(SessionId session, absl::Time now) = 0;
  virtual void OnTokens(SessionId session, uint32_t tokens, absl::Time now) = 0;
  virtual void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary,
                          absl::Time now) = 0;
  // It would not take the session.
  virtual void OnRefused(SessionId session, const absl::Status& reason, absl::Time now) = 0;
};

// A verifier: the real Scheduler, and the real DrafterPools, on a PlanTarget.
//
//   inbox -> [ Step at due(): what arrived -> Conclude -> Forward ]* -> events, messages to drafters
//
// As in the verifier's engine loop, messages that arrive during a pass are handled before its conclusion.
class VerifierMachine final : private SchedulerListener {
 public:
  using Send = std::function<void(absl::Time departure, LinkId link, DraftRequest request)>;

  VerifierMachine(const Layout& layout, const DrafterPlaces& places, uint64_t seed, Send send,
                  VerifierEvents* events);

  void Submit(absl::Time arrival, SessionId session, SessionRequest request);
  void Receive(absl::Time arrival, LinkId link, DraftResponse response);

  // When Step is to be called next, if nothing comes before.
  absl::Time due() const { return due_; }
  void Step();

  absl::Duration busy() const { return engine_.busy(); }
  uint64_t num_steps() const { return engine_.num_steps(); }
  uint64_t num_rows() const { return engine_.num_rows(); }
  uint32_t num_waiting() const { return scheduler_->num_waiting(); }
  uint64_t preemptions() const { return preemptions_; }
  // Not OK once something went wrong that cannot: a drafter that breaks the protocol, an engine that fails.
  const absl::Status& failure() const { return failure_; }
  // Once every request has ended: whether nothing is left of any.
  absl::Status CheckEmpty() const;

 private:
  struct Message {
    absl::Time arrival;
    SessionId session = 0;                    // Of a request,
    std::unique_ptr<SessionRequest> request;  // which is this;
    LinkId link = 0;                          // else a drafter's,
    DraftResponse response;                   // who says this.
  };

  void TakeMessages(absl::Time until);
  void MoveSessions();
  void Schedule();

  void OnStarted(SessionId session) override;
  void OnTokens(SessionId session, CommittedTokens tokens) override;
  void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) override;
  void OnDraftRequest(LinkId link, DraftRequest request) override;
  void OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) override;
  void OnStep(const StepReport& report) override;
  void OnDrafterChanged(SessionId session, const DrafterBinding& binding) override;

  const absl::Duration between_steps_;
  const absl::Duration between_steps_per_session_;
  const Send send_;
  VerifierEvents* const events_;
  PlanClock clock_;
  PlanTarget engine_;
  BlockPool pool_;
  uint64_t draws_ = 0;
  DrafterPools pools_;
  std::unique_ptr<Scheduler> scheduler_;
  Inbox<Message> inbox_;
  bool in_flight_ = false;
  uint32_t step_sessions_ = 0;
  uint32_t num_vain_steps_ = 0;
  uint64_t preemptions_ = 0;
  absl::Time free_at_;  // When the next pass may begin.
  absl::Time due_ = absl::InfiniteFuture();
  absl::Status failure_;
};

// A drafter: the real DraftCore on a PlanDraft.
class DrafterMachine final {
 public:
  using Reply = std::function<void(absl::Time departure, LinkId verifier, DraftResponse response)>;

  // `acceptance`: by kind.
  DrafterMachine(const DrafterGroup& group, std::vector<const Acceptance*> acceptance, Reply reply);

  void Receive(absl::Time arrival, LinkId verifier, DraftRequest request);
  absl::Time due() const { return due_; }
  void Step();

  absl::Duration busy() const { return engine_.busy(); }
  uint64_t num_steps() const { return engine_.num_steps(); }
  uint64_t num_rows() const { return engine_.num_rows(); }
  absl::Status CheckEmpty() const;

 private:
  struct Message {
    LinkId verifier = 0;
    DraftRequest request;
  };
  const absl::Duration between_steps_;
  const Reply reply_;
  PlanClock clock_;
  PlanDraft engine_;
  BlockPool pool_;
  DraftCore core_;
  Inbox<Message> inbox_;
  absl::Time free_at_;
  absl::Time due_ = absl::InfiniteFuture();
};

}  // namespace tandem::plan
